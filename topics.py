"""Where new topics begin: older turns leave the window, nothing is deleted.

A mark belongs to one conversation and counts messages of its history. Invariants:

* A mark is one row; taking it back deletes it.
* A history that no longer holds the turn before the mark has no new topic.
* Messages of a group are only counted, never kept, and only where it is asked for. The
  count outlives a restart; what cannot be stored is counted in memory.
"""

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Any

from .bounded import BoundedMap
from .database import Database
from .errors import StorageUnavailable
from .limits import TopicMark
from .watermark import without_checkpoints
from .window import topic_mark

HOUR = 3600


@dataclass(frozen=True, slots=True)
class StoredTopic:
    """A mark with where it came from.

    Attributes:
        mark: Where the topic begins.
        source: ``user`` or ``idle``.
        created_at: Unix seconds.
    """

    mark: TopicMark
    source: str
    created_at: int


class Topics:
    """Stores the marks and counts group messages that do not address the bot.

    Args:
        database: Where the marks are.
        known: Marks by conversation, as they are there.
        counts: Messages in a row, by session.
    """

    def __init__(self, database: Database, known: BoundedMap, counts: BoundedMap) -> None:
        self._database = database
        self._known = known
        self._counts = counts

    async def of(self, conversation_id: str) -> StoredTopic | None:
        """The mark of a conversation, or None."""
        if conversation_id not in self._known:
            async with self._database.reading() as db:
                rows = await db.execute_fetchall(
                    "SELECT message_index, content_hash, source, created_at FROM topics"
                    " WHERE conversation_id = ?",
                    (conversation_id,),
                )
            found = next((StoredTopic(TopicMark(*row[:2]), *row[2:]) for row in rows), None)
            self._known[conversation_id] = found
        return self._known.get(conversation_id)

    async def set(self, conversation_id: str, session_id: str, topic: StoredTopic) -> None:
        """Marks a new topic; an older mark of the conversation gives way."""
        values = (topic.mark.message_index, topic.mark.content_hash, topic.source)
        async with self._database.writing() as db:
            await db.execute(
                "INSERT OR REPLACE INTO topics (conversation_id, session_id, message_index,"
                " content_hash, source, created_at) VALUES (?, ?, ?, ?, ?, ?)",
                (conversation_id, session_id, *values, topic.created_at),
            )
        self._known[conversation_id] = topic

    async def undo(self, conversation_id: str) -> bool:
        """Takes the mark back; whether there was one."""
        async with self._database.writing() as db:
            cursor = await db.execute(
                "DELETE FROM topics WHERE conversation_id = ?", (conversation_id,)
            )
        self._known.pop(conversation_id)
        return cursor.rowcount > 0

    async def count(self, session_id: str, addressed: bool, limit: int) -> None:
        """Notes a message of a group.

        Args:
            session_id: The group's session.
            addressed: Whether it was meant for the bot; that ends a row which is
                still too short.
            limit: Messages in a row that begin a new topic; 0: none do.
        """
        counted = await self._counted(session_id) if limit else 0
        if not limit:
            self._counts.pop(session_id)
        elif addressed and 0 < counted < limit:
            await self._keep(session_id, 0)
        elif not addressed and counted < limit:
            await self._keep(session_id, counted + 1)

    async def idle_messages(self, session_id: str, limit: int) -> bool:
        """Whether enough messages went by; the next row begins."""
        counted = await self._counted(session_id) if limit else 0
        if counted:
            await self._keep(session_id, 0)
        return 0 < limit <= counted

    async def _counted(self, session_id: str) -> int:
        if session_id not in self._counts:
            found = []
            with contextlib.suppress(StorageUnavailable):
                async with self._database.reading() as db:
                    found = await db.execute_fetchall(
                        "SELECT messages FROM idle_messages WHERE session_id = ?", (session_id,)
                    )
            # Another message may have been counted meanwhile.
            if session_id not in self._counts:
                self._counts[session_id] = found[0][0] if found else 0
        return self._counts.get(session_id, 0)

    async def _keep(self, session_id: str, counted: int) -> None:
        self._counts[session_id] = counted
        with contextlib.suppress(StorageUnavailable):
            async with self._database.writing() as db:
                await db.execute(
                    "INSERT OR REPLACE INTO idle_messages (session_id, messages) VALUES (?, ?)",
                    (session_id, counted),
                )


async def start_topic(
    topics: Topics, session_id: str, conversation_id: str | None, history: list[Any], now: int
) -> bool:
    """A person begins a new topic behind what is stored; whether there was anything."""
    mark = await asyncio.to_thread(topic_mark, without_checkpoints(history))
    if conversation_id is None or mark is None:
        return False
    await topics.set(conversation_id, session_id, StoredTopic(mark, "user", now))
    return True
