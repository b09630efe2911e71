"""Keeps the archive in step with the host, behind the chats' back.

Invariants:

* A request only hands over what was saved; everything else happens in a task of its
  session, which no request waits for and no cancelled request ends.
* What could not be written is made up for by the next request of the session.
* A conversation is read only under the host's session lock, and never while a cut of
  it is still to be repaired: a short copy is no deletion.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Container, Sequence
from dataclasses import dataclass
from typing import Any

from .archive import Archive, Held, HostConversation
from .archive_rows import Original, Turn, content_hash
from .errors import StorageUnavailable
from .host import Host
from .journal import Journal
from .storage import Storage
from .watermark import without_checkpoints

logger = logging.getLogger("astrbot")

# How long terminate() lets the writes end that have begun.
_CLOSE_SECONDS = 2


@dataclass(frozen=True, slots=True)
class Saved:
    """A conversation as it was read under the session's lock."""

    conversation: HostConversation
    history: list[dict[str, Any]]
    turn: Turn | None


class Archivist:
    """Takes conversations over into the archive, one task a session."""

    def __init__(
        self,
        archive: Archive,
        host: Host,
        storage: Storage,
        journal: Journal,
        is_cut: Callable[[str], bool],
        whole: Callable[[str, str], Awaitable[list[dict[str, Any]] | None]],
    ) -> None:
        self.archive = archive
        self._host = host
        self._storage = storage
        self._journal = journal
        self._is_cut = is_cut
        self._whole = whole
        self._waiting: dict[str, dict[str, Saved]] = {}
        self._copies: dict[str, dict[str, list[Original]]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._closed = False

    def later(self, saved: Saved) -> None:
        """Takes over what a request has saved, and whatever else changed in its session."""
        session_id = saved.conversation.session_id
        waiting = self._waiting.setdefault(session_id, {})
        # A newer state of the conversation holds the older one.
        waiting[saved.conversation.conversation_id] = saved
        self._start(session_id)

    def brought_back(
        self, session_id: str, conversation_id: str, originals: list[Original]
    ) -> None:
        """Takes over a conversation that was made from archived rows, one row a message."""
        self._waiting.setdefault(session_id, {})
        self._copies.setdefault(session_id, {})[conversation_id] = originals
        self._start(session_id)

    async def catch_up(self, session_id: str, seconds: float) -> None:
        """Takes over whatever changed in a session; after some seconds it goes on by itself."""
        self._waiting.setdefault(session_id, {})
        if task := self._start(session_id):
            await asyncio.wait([task], timeout=seconds)

    def _start(self, session_id: str) -> asyncio.Task[None] | None:
        if self._closed:
            return None
        task = self._tasks.get(session_id)
        # One that has ended takes nothing more, even before its callback has run.
        if task is None or task.done():
            task = asyncio.get_running_loop().create_task(self._work(session_id))
            self._tasks[session_id] = task
            task.add_done_callback(lambda ended: self._ended(session_id, ended))
        return task

    def _ended(self, session_id: str, task: asyncio.Task[None]) -> None:
        if self._tasks.get(session_id) is task:
            del self._tasks[session_id]

    async def close(self) -> None:
        """Lets what has begun end; the rest is made up for after the next start."""
        self._closed = True
        tasks = list(self._tasks.values())
        if tasks:
            await asyncio.wait(tasks, timeout=_CLOSE_SECONDS)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(self, session_id: str) -> None:
        try:
            while (waiting := self._waiting.pop(session_id, None)) is not None:
                # Before the list: it must hold the conversations they are of.
                copies = self._copies.pop(session_id, {})
                listed = await self._host.list_conversations(session_id)
                if await self._archives(session_id):
                    for saved in waiting.values():
                        await self.archive.take_over(saved.conversation, saved.history, saved.turn)
                    await self._others(session_id, listed, waiting)
                    for conversation_id, originals in copies.items():
                        await self.archive.note_copies(session_id, conversation_id, originals)
                await self._journal.forget(session_id, [c.conversation_id for c in listed])
        except StorageUnavailable as error:
            logger.debug("[context_manager] %s: not archived now: %s", session_id, error)
        except Exception:
            logger.exception("[context_manager] %s: could not be archived", session_id)
        finally:
            self._waiting.pop(session_id, None)
            self._copies.pop(session_id, None)

    async def _archives(self, session_id: str) -> bool:
        session = await self._storage.get_session(session_id)
        return session is not None and session.archive_enabled

    async def _others(
        self, session_id: str, listed: Sequence[HostConversation], done: Container[str]
    ) -> None:
        """The session's other conversations: those that changed, and those that are gone."""
        known = {c.conversation_id: c for c in await self.archive.states(session_id)}
        for conversation in listed:
            key = conversation.conversation_id
            state = known.get(key)
            same = state is not None and state.host_updated_at == conversation.updated_at
            if key not in done and not same:
                await self._take_over(session_id, key)
        there = {conversation.conversation_id for conversation in listed}
        gone = [key for key, state in known.items() if state.in_host and key not in there]
        if gone:
            await self.archive.mark_deleted(session_id, gone)

    async def _take_over(self, session_id: str, conversation_id: str) -> None:
        async with self._host.session_lock(session_id):
            if self._is_cut(conversation_id):
                return
            listed = await self._host.list_conversations(session_id)
            found = [c for c in listed if c.conversation_id == conversation_id]
            history = await self._host.load_conversation(session_id, conversation_id)
        if found and history is not None:
            await self.archive.take_over(found[0], history)

    async def delete(self, session_id: str) -> int:
        """Deletes a session's archive for good; returns the number of messages.

        What the host holds now is not archived again.
        """
        held = []
        for conversation in await self._host.list_conversations(session_id):
            key = conversation.conversation_id
            messages = without_checkpoints(await self._whole(session_id, key) or [])
            hashes = await asyncio.to_thread(lambda of: [content_hash(m) for m in of], messages)
            held.append(Held(key, conversation.updated_at, hashes))
        await self._drop(session_id)
        # Before the free pages are wiped.
        await self._journal.forget(session_id)
        return await self.archive.delete_session(session_id, held)

    async def _drop(self, session_id: str) -> None:
        """What is still to be taken over is older than what was just read."""
        self._waiting.pop(session_id, None)
        if task := self._tasks.get(session_id):
            task.cancel()
            await asyncio.wait([task])
