"""What is remembered of conversations from one request to the next.

Window, new topic and what the summary covers. Invariants:

* All of it is in the database; memory holds what was used last, within bounds.
* A database that fails costs the memory of what is not held, never a request.
* A covered part that was edited covers nothing. It is hashed once; after that a
  quicker fingerprint tells whether it is still the same.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .bounded import BoundedMap
from .errors import StorageUnavailable
from .fingerprint import fingerprint
from .host import Host
from .limits import Limits, TopicMark, WindowMark
from .prompt_estimates import Estimate
from .request_log import RequestLog
from .settings import Settings
from .storage import Session, Storage
from .topics import HOUR, StoredTopic, Topics
from .watermark import covered_messages
from .window import topic_mark

logger = logging.getLogger("astrbot")


@dataclass(frozen=True, slots=True)
class Remembered:
    """What a request of a conversation starts from; see ``context_logic.build``."""

    mark: WindowMark | None = None
    topic: TopicMark | None = None
    covered: int = 0


class ConversationState:
    """Windows, topics and coverage of the conversations of one instance.

    Args:
        host: Where conversations are loaded from.
        storage: The database.
        log: The records of requests.
        make_map: Makes a map with the bounds that the settings give.
    """

    def __init__(
        self,
        host: Host,
        storage: Storage,
        log: RequestLog,
        make_map: Callable[[], BoundedMap],
    ) -> None:
        self._host = host
        self._storage = storage
        self._log = log
        self._windows = make_map()
        self._checked = make_map()
        self.topics = Topics(storage.database, make_map(), make_map())

    async def of(
        self, session: Session | None, conversation_id: str | None, history: Sequence[Any]
    ) -> Remembered:
        """Everything remembered of a conversation that holds ``history`` now."""
        if conversation_id is None:
            return Remembered()
        covered = 0
        if session is not None and session.tail_tokens:
            covered = await self.covered(session.session_id, conversation_id, history)
        topic = None
        with contextlib.suppress(StorageUnavailable):
            topic = await self.topics.of(conversation_id)
        return Remembered(
            await self.window_of(conversation_id), topic.mark if topic else None, covered
        )

    async def window_of(self, conversation_id: str | None) -> WindowMark | None:
        """The window a conversation's next request starts from, if one is remembered."""
        if conversation_id is None or conversation_id in self._windows:
            return self._windows.get(conversation_id)
        try:
            return await self._storage.get_window(conversation_id)
        except StorageUnavailable:
            return None

    async def remember_window(
        self, session_id: str, conversation_id: str | None, mark: WindowMark | None
    ) -> None:
        """Notes the window of a request, if it moved."""
        if conversation_id is None or mark is None or self._windows.get(conversation_id) == mark:
            return
        self._windows[conversation_id] = mark
        # The storage logs a failure; the window is kept in memory.
        with contextlib.suppress(StorageUnavailable):
            await self._storage.set_window(conversation_id, session_id, mark)

    async def begin_idle_topic(
        self,
        session: Session | None,
        conversation_id: str | None,
        history: Sequence[Any],
        now: int,
    ) -> None:
        """A group that was away long enough begins a new topic by itself."""
        if session is None or session.kind != "group" or conversation_id is None:
            return
        if not await self._was_idle(session, now):
            return
        mark = topic_mark(history)
        if mark is None:
            return
        # Without the mark older turns are sent once more, nothing else.
        with contextlib.suppress(StorageUnavailable):
            topic = StoredTopic(mark, "idle", now)
            await self.topics.set(conversation_id, session.session_id, topic)
            logger.info("[context_manager] %s: new topic after a pause", session.session_id)

    async def _was_idle(self, session: Session, now: int) -> bool:
        if await self.topics.idle_messages(session.session_id, session.topic_idle_messages):
            return True
        if not session.topic_idle_hours:
            return False
        with contextlib.suppress(StorageUnavailable):
            newest = await self._log.newest(session.session_id, 1)
            return bool(newest) and now - newest[0].time >= session.topic_idle_hours * HOUR
        return False

    async def covered(
        self, session_id: str, conversation_id: str | None, history: Sequence[Any]
    ) -> int:
        """Leading messages of a conversation that the summary covers.

        Args:
            session_id: The session.
            conversation_id: Its present conversation.
            history: The conversation's messages, without checkpoints.
        """
        if conversation_id is None:
            return 0
        try:
            version = await self._storage.latest_coverage(session_id)
        except StorageUnavailable:
            return 0
        if version is None or version.conversation_id != conversation_id:
            return 0
        state = (version.id, fingerprint(history[: version.covered]))
        known = self._checked.get(conversation_id)
        if known is None or known[0] != state:
            covered = await asyncio.to_thread(covered_messages, version, conversation_id, history)
            known = (state, covered)
            self._checked[conversation_id] = known
        return known[1]


def limits_of(
    values: Session | Settings, settings: Settings, host_limit: int | None, estimate: Estimate
) -> Limits:
    """The limits of a request, from a session's values or, without one, the defaults."""
    return Limits(
        budget=values.recent_context_token_budget,
        host_limit=host_limit,
        keep_ratio=values.window_keep_ratio,
        keep_media_turns=settings.keep_media_turns,
        keep_media_bytes=settings.keep_media_kilobytes << 10,
        keep_first_turns=values.keep_first_turns,
        tail_tokens=values.tail_tokens,
        model_limit=estimate.model_limit,
        margin=estimate.margin,
        framing=estimate.framing,
    )
