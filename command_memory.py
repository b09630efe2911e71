"""What ``/记忆`` does: list, add, delete, clear the memories of the session.

Clearing asks first: the same command once more within a minute confirms it.
"""

import re
import time
from collections.abc import Callable
from typing import Any

from .errors import MemoryRefused, StorageUnavailable
from .host import Host
from .memories import LongTermMemory
from .memory import entry_of
from .memory_store import Memory
from .memory_tools import ids_of
from .message_text import beginning
from .storage import Session, Storage
from .texts import Texts

LISTED = 20
CONFIRM_SECONDS = 60
_EXCERPT = 120

_ADD = ("添加", "增加", "add")
_DELETE = ("删除", "忘记", "delete", "forget")
_CLEAR = ("清空", "clear")


class MemoryCommand:
    """Answers the command."""

    def __init__(
        self,
        memory: LongTermMemory,
        storage: Storage,
        host: Host,
        texts: Texts,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._storage = storage
        self._host = host
        self._memory = memory
        self._texts = texts
        self._clock = clock
        self._asked: dict[tuple[str, str], float] = {}

    @staticmethod
    def changes(words: str) -> bool:
        """Whether a command with these words changes memories."""
        return bool(words.strip())

    async def answer(self, event: Any, words: str) -> str:
        """Carries out the command.

        Args:
            event: The host's event; its session is the only one that is touched.
            words: What stands behind the command's name.
        """
        try:
            session = await self._session(event)
            return await self._answer(session, event, words)
        except StorageUnavailable:
            return self._texts.get("storage_unavailable")

    async def _session(self, event: Any) -> Session:
        session_id, _, platform = self._host.session_of(event)
        return await self._storage.ensure_session(session_id, platform, int(time.time()))

    async def _answer(self, session: Session, event: Any, words: str) -> str:
        verb, _, rest = re.sub(r"^(\S+)\s+", r"\1 ", words.strip()).partition(" ")
        if not verb:
            return await self._list(session)
        if verb in _ADD:
            return await self._add(session, str(event.get_sender_name() or ""), rest)
        if verb in _DELETE:
            return await self._delete(session, rest)
        if verb in _CLEAR:
            return await self._clear(session, str(event.get_sender_id()))
        return self._texts.get("memory_usage")

    async def _list(self, session: Session) -> str:
        memories, count = await self._memory.store.newest(session.session_id, LISTED)
        head = "memory_list" if count else "memory_list_empty"
        lines = [self._texts.get(head, shown=len(memories), count=count)]
        lines += map(_line, memories)
        if not session.memory_enabled:
            lines.append(self._texts.get("memory_list_off"))
        return "\n".join([*lines, self._texts.get("memory_usage")])

    async def _add(self, session: Session, name: str, text: str) -> str:
        try:
            entry = entry_of(text, (), name if session.kind == "group" else "")
            memory = await self._memory.save(session, entry, "command")
        except MemoryRefused as refusal:
            return self._texts.get(refusal.reason_key, **refusal.params)
        return self._texts.get("memory_saved", id=memory.id)

    async def _delete(self, session: Session, words: str) -> str:
        ids = ids_of(words)
        if not ids:
            return self._texts.get("memory_usage")
        deleted = await self._memory.store.delete(session.session_id, ids)
        if not deleted:
            return self._texts.get("memory_unknown", ids=", ".join(map(str, ids)))
        head = self._texts.get("memory_forgotten", count=len(deleted))
        return "\n".join([head, *map(_line, deleted)])

    async def _clear(self, session: Session, sender: str) -> str:
        key, now = (session.session_id, sender), self._clock()
        self._asked = {k: t for k, t in self._asked.items() if now - t <= CONFIRM_SECONDS}
        if self._asked.pop(key, None) is not None:
            count = await self._memory.store.clear(session.session_id)
            return self._texts.get("memory_cleared", count=count)
        _, count = await self._memory.store.newest(session.session_id, 1)
        if not count:
            return self._texts.get("memory_list_empty")
        self._asked[key] = now
        return self._texts.get("memory_clear_confirm", count=count)


def _line(memory: Memory) -> str:
    person = f"[{memory.about}] " if memory.about else ""
    return f"#{memory.id} {person}{beginning(re.sub(r'\s+', ' ', memory.text), _EXCERPT)}"
