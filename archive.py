"""The append-only archive of every message of every managed conversation.

Invariants:

* Of a conversation, the rows that are ``in_host``, in the order of ``seq``, are the
  messages that its host held when the conversation was last taken over. A message
  that the host no longer holds keeps its row and its place.
* A conversation that was emptied, by a reset or to make its first answer anew, goes on
  as a conversation of its own, ``ID#1``, that the host does not hold; what is said
  afterwards begins anew, whatever it repeats.
* A conversation is taken over in bounded steps, each one transaction. A step that
  fails changes nothing, and the next call goes on from there.
* Rows go and come only together with their entries in the search index.
* What a user deleted does not come back, even while the host still holds it. Of it
  there are only short hashes, and only as long as the host holds it.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any
from weakref import WeakValueDictionary

import aiosqlite

from . import search_index
from .archive_changes import STEP, Change, HostConversation, Known, plan_change
from .archive_rows import (
    ArchivedMessage,
    Insertion,
    Original,
    Times,
    Turn,
    archived,
    packed,
    readable_text,
    unpacked,
)
from .database import Database
from .message_text import clean_text
from .watermark import without_checkpoints

_TITLE_LENGTH, _OPENING_LENGTH = 200, 60


@dataclass(frozen=True, slots=True)
class ConversationState:
    """How the host held a conversation when it was last taken over."""

    conversation_id: str
    in_host: bool
    host_updated_at: float


@dataclass(frozen=True, slots=True)
class Held:
    """What the host holds of a conversation: its state and the hashes of its messages."""

    conversation_id: str
    updated_at: float
    hashes: list[str]


class Archive:
    """Writes the archive; one writer per session at a time. It is read elsewhere."""

    def __init__(self, database: Database) -> None:
        self._database = database
        # Only those that are held or waited for.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def _alone(self, session_id: str) -> asyncio.Lock:
        return self._locks.setdefault(session_id, asyncio.Lock())

    async def take_over(
        self,
        conversation: HostConversation,
        history: Sequence[dict[str, Any]],
        turn: Turn | None = None,
    ) -> int:
        """Makes the archive agree with a conversation as the host holds it now.

        Args:
            conversation: The conversation.
            history: Its stored messages, checkpoints included.
            turn: What is known of the newest messages.

        Returns:
            How many messages were added.

        Raises:
            StorageUnavailable: The database cannot be written; steps done stay.
        """
        messages = without_checkpoints(history)
        async with self._alone(conversation.session_id):
            known = await self._known(conversation.conversation_id)
            change = await asyncio.to_thread(plan_change, known, conversation, messages, turn)
            rows: list[ArchivedMessage] = []
            for number, step in enumerate(change.steps or [None]):
                if step is not None:
                    goes_on = number > 0 and change.steps[number - 1].end == step.start
                    times = _times(conversation, known.rows, step, rows if goes_on else [])
                    rows = await asyncio.to_thread(
                        archived, change.messages, step.start, step.end, times, change.turn
                    )
                async with self._database.writing() as db:
                    if number == 0 and change.was_reset:
                        await _set_apart(db, conversation.conversation_id)
                    await _note_conversation(db, conversation, change)
                    await _mark_gone(db, change.gone if number == 0 else [])
                    if step is not None:
                        await _add(db, conversation, step.before, rows)
                    if number >= len(change.steps) - 1:
                        await _note_end(db, conversation)
        return sum(step.end - step.start for step in change.steps)

    async def _known(self, conversation_id: str) -> Known:
        async with self._database.reading() as db:
            found = await db.execute_fetchall(
                "SELECT host_updated_at, forgotten, forgotten_hashes FROM archived_conversations"
                " WHERE conversation_id = ?",
                (conversation_id,),
            )
            rows = await db.execute_fetchall(
                "SELECT id, seq, content_hash, time FROM archived_messages"
                " WHERE conversation_id = ? AND in_host = 1 ORDER BY seq, id",
                (conversation_id,),
            )
        seen_at, count, stored = next(iter(found), (0.0, 0, b""))
        return Known(seen_at, count, unpacked(stored), list(rows))

    async def note_copies(
        self, session_id: str, conversation_id: str, originals: Sequence[Original]
    ) -> None:
        """The first messages of a conversation are copies: they were said when and by whom
        their originals were.

        Args:
            session_id: The session.
            conversation_id: A conversation that was taken over.
            originals: One row a message, in order. What is no copy any more stays as it is.

        Raises:
            StorageUnavailable: The database cannot be written; steps done stay.
        """
        async with self._alone(session_id):
            for start in range(0, len(originals), STEP):
                async with self._database.writing() as db:
                    await _note_copies(db, conversation_id, start, originals[start : start + STEP])

    async def mark_deleted(self, session_id: str, conversation_ids: Sequence[str]) -> None:
        """The host holds these conversations no more; everything in them stays."""
        async with self._alone(session_id), self._database.writing() as db:
            await db.executemany(
                "UPDATE archived_conversations SET in_host = 0, forgotten = 0,"
                " forgotten_hashes = x'' WHERE conversation_id = ? AND session_id = ?",
                [(key, clean_text(session_id)) for key in conversation_ids],
            )

    async def states(self, session_id: str) -> list[ConversationState]:
        """What was last taken over of each conversation of a session."""
        async with self._database.reading() as db:
            rows = await db.execute_fetchall(
                "SELECT conversation_id, in_host, host_updated_at FROM archived_conversations"
                " WHERE session_id = ?",
                (session_id,),
            )
        return [ConversationState(key, bool(in_host), state) for key, in_host, state in rows]

    async def delete_session(self, session_id: str, held: Sequence[Held]) -> int:
        """Deletes a session's archive for good: rows, index and the pages they were on.

        Args:
            session_id: The session.
            held: What the host still holds: it is not archived again.

        Returns:
            How many messages were deleted.
        """
        deleted = 0
        async with self._alone(session_id):
            while step := await self._delete_step(session_id):
                deleted += step
            async with self._database.writing() as db:
                await db.execute(
                    "DELETE FROM archived_conversations WHERE session_id = ?", (session_id,)
                )
                await db.executemany(
                    "INSERT INTO archived_conversations (conversation_id, session_id,"
                    " host_updated_at, forgotten, forgotten_hashes) VALUES (?, ?, ?, ?, ?)",
                    [
                        (h.conversation_id, session_id, h.updated_at, *_noted(h.hashes))
                        for h in held
                        if h.hashes
                    ],
                )
            await search_index.compact(self._database)
            await self._database.wipe_free_pages()
        return deleted

    async def _delete_step(self, session_id: str) -> int:
        async with self._database.writing() as db:
            rows = await _indexed_rows(db, session_id, STEP)
            await search_index.remove(db, rows)
            ids = [(row[0],) for row in rows]
            await db.executemany("DELETE FROM archived_messages WHERE id = ?", ids)
            await db.executemany("DELETE FROM archived_copies WHERE message_id = ?", ids)
        return len(rows)


def _noted(forgotten: Sequence[str]) -> tuple[int, bytes]:
    """What the table says of forgotten messages: their number and short hashes."""
    return len(forgotten), packed(forgotten)


def _times(
    conversation: HostConversation,
    old: Sequence[tuple[int, int, str, int]],
    step: Insertion,
    in_front: Sequence[ArchivedMessage],
) -> Times:
    """When the messages of a step can have been said.

    Args:
        conversation: Their conversation.
        old: ``(id, seq, content_hash, time)`` of the rows that were there.
        step: The step.
        in_front: The rows of the step before, if this one goes on with it.
    """
    latest = conversation.updated_at
    if in_front:
        return Times(in_front[-1].time, in_front[-1].time, latest)
    before = [row[3] for row in old if step.before is None or row[1] < step.before]
    default = latest if old else conversation.created_at
    return Times(before[-1] if before else 0, int(default), latest)


def _title_of(messages: Sequence[dict[str, Any]]) -> str:
    """What tells a conversation without a title apart: how it began."""
    for message in messages:
        if message.get("role") == "user" and (text := readable_text(message).strip()):
            return text.split("\n", 1)[0][:_OPENING_LENGTH]
    return ""


async def _note_conversation(
    db: aiosqlite.Connection, conversation: HostConversation, change: Change
) -> None:
    title = conversation.title or _title_of(change.messages)
    await db.execute(
        "INSERT INTO archived_conversations"
        " (conversation_id, session_id, title, forgotten, forgotten_hashes)"
        " VALUES (?, ?, ?, ?, ?) ON CONFLICT (conversation_id) DO UPDATE SET in_host = 1,"
        " title = CASE WHEN ? OR title = '' THEN excluded.title ELSE title END,"
        " forgotten = excluded.forgotten, forgotten_hashes = excluded.forgotten_hashes",
        (
            conversation.conversation_id,
            clean_text(conversation.session_id),
            clean_text(title)[:_TITLE_LENGTH],
            *_noted(change.forgotten),
            bool(conversation.title),
        ),
    )


async def _set_apart(db: aiosqlite.Connection, key: str) -> None:
    """What a conversation held before its reset becomes a conversation of its own."""
    rows = await db.execute_fetchall(
        "SELECT count(*) FROM archived_conversations"
        " WHERE conversation_id > ? || '#' AND conversation_id < ? || '$'",
        (key, key),
    )
    apart = f"{key}#{next(iter(rows))[0] + 1}"
    await db.execute(
        "INSERT INTO archived_conversations"
        " (conversation_id, session_id, title, first_at, last_at, in_host)"
        " SELECT ?, session_id, title, first_at, last_at, 0 FROM archived_conversations"
        " WHERE conversation_id = ?",
        (apart, key),
    )
    await db.execute(
        "UPDATE archived_messages SET conversation_id = ? WHERE conversation_id = ?", (apart, key)
    )
    await db.execute(
        "UPDATE archived_conversations SET title = '', first_at = 0, last_at = 0"
        " WHERE conversation_id = ?",
        (key,),
    )


async def _note_end(db: aiosqlite.Connection, conversation: HostConversation) -> None:
    """Everything was taken over: notes the times, and the host's state it was."""
    key = conversation.conversation_id
    await db.execute(
        "UPDATE archived_conversations SET host_updated_at = ? WHERE conversation_id = ?",
        (conversation.updated_at, key),
    )


async def _mark_gone(db: aiosqlite.Connection, ids: Sequence[int]) -> None:
    await db.executemany(
        "UPDATE archived_messages SET in_host = 0 WHERE id = ?", [(row_id,) for row_id in ids]
    )


async def _add(
    db: aiosqlite.Connection,
    conversation: HostConversation,
    before: int | None,
    rows: Sequence[ArchivedMessage],
) -> None:
    """Adds rows before a place, or behind all; in the search index too."""
    key, session_id = conversation.conversation_id, clean_text(conversation.session_id)
    seq = await _room(db, key, len(rows), before)
    last = await db.execute_fetchall(
        "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'archived_messages'"
    )
    first_id = next(iter(last))[0] + 1
    names = ", ".join(ArchivedMessage.__slots__)
    await db.executemany(
        f"INSERT INTO archived_messages (id, session_id, conversation_id, seq, {names})"
        f" VALUES ({', '.join('?' * (4 + len(ArchivedMessage.__slots__)))})",
        [
            (first_id + number, session_id, key, seq + number, *astuple(row))
            for number, row in enumerate(rows)
        ],
    )
    await search_index.add(
        db, [(first_id + n, session_id, row.sender, row.text) for n, row in enumerate(rows)]
    )
    times = [row.time for row in rows]
    await db.execute(
        "UPDATE archived_conversations SET last_at = max(last_at, ?),"
        " first_at = CASE first_at WHEN 0 THEN ? ELSE min(first_at, ?) END"
        " WHERE conversation_id = ?",
        (max(times), min(times), min(times), key),
    )


async def _note_copies(
    db: aiosqlite.Connection, key: str, start: int, originals: Sequence[Original]
) -> None:
    rows = await db.execute_fetchall(
        "SELECT id, session_id, sender, text, role FROM archived_messages"
        " WHERE conversation_id = ? AND in_host = 1 ORDER BY seq, id LIMIT ? OFFSET ?",
        (key, len(originals), start),
    )
    copies = [
        (row, original)
        for row, original in zip(rows, originals, strict=False)
        if (row[3], row[4]) == (original.text, original.role)
    ]
    renamed = [(row, original) for row, original in copies if row[2] != original.sender]
    await search_index.remove(db, [row[:4] for row, _ in renamed])
    await search_index.add(db, [(*row[:2], o.sender, row[3]) for row, o in renamed])
    await db.executemany(
        "UPDATE archived_messages SET time = ?, sender = ? WHERE id = ?",
        [(original.time, original.sender, row[0]) for row, original in copies],
    )
    await db.executemany(
        "INSERT OR REPLACE INTO archived_copies (message_id, original_id) VALUES"
        " (?, coalesce((SELECT original_id FROM archived_copies WHERE message_id = ?), ?))",
        [(row[0], original.id, original.id) for row, original in copies],
    )
    await db.execute(
        "UPDATE archived_conversations SET (first_at, last_at) = (SELECT coalesce(min(time), 0),"
        " coalesce(max(time), 0) FROM archived_messages WHERE conversation_id = ?)"
        " WHERE conversation_id = ?",
        (key, key),
    )


async def _room(
    db: aiosqlite.Connection, conversation_id: str, count: int, before: int | None
) -> int:
    """The first of ``count`` free places before a place, or behind all."""
    if before is not None:
        await db.execute(
            "UPDATE archived_messages SET seq = seq + ? WHERE conversation_id = ? AND seq >= ?",
            (count, conversation_id, before),
        )
        return before
    rows = await db.execute_fetchall(
        "SELECT coalesce(max(seq), -1) + 1 FROM archived_messages WHERE conversation_id = ?",
        (conversation_id,),
    )
    return next(iter(rows))[0]


async def _indexed_rows(
    db: aiosqlite.Connection, session_id: str, limit: int
) -> list[search_index.IndexedRow]:
    """The first rows of a session, as the search index knows them."""
    rows = await db.execute_fetchall(
        "SELECT id, session_id, sender, text FROM archived_messages WHERE session_id = ?"
        " ORDER BY id LIMIT ?",
        (session_id, limit),
    )
    return [tuple(row) for row in rows]
