"""The journal: what a request that is killed with its process leaves to be repaired.

Invariants:

* Before a request is cut, the journal holds its whole history, exact and compressed,
  and one row of constant size that says what was loaded and what is sent. The row is
  removed once what the host saved has been checked.
* A finished turn is added after its save, so that a request finds its history held
  already; a conversation that was changed by others is written anew.
* The rule of a repair is that of every other: only a list that was saved from that
  very cut, up to and including its current message, and that is not the history as
  it was loaded. What the journal gives back is checked against the row first.
* No failure of the journal stops a cut.
"""

import asyncio
import json
import logging
import zlib
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import aiosqlite

from .database import Database
from .errors import JournalDamaged
from .fingerprint import Fingerprint, fingerprint

logger = logging.getLogger("astrbot")

History = list[dict[str, Any]]

# More parts than these are joined into one.
_PARTS = 64
# A conversation that nobody talked in for so long gets its journal anew.
_KEPT_SECONDS = 30 * 86400


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """A request that was cut and not checked since.

    Attributes:
        loaded: The history as it was loaded.
        sent: What the host would save of the cut list, up to and including the
            current message.
    """

    id: int
    session_id: str
    conversation_id: str
    loaded: Fingerprint
    sent: Fingerprint


class Journal:
    """Reads and writes the journal; one writer per conversation at a time."""

    def __init__(self, database: Database, clock: Callable[[], float]) -> None:
        self._database = database
        self._clock = clock
        # Requests that an earlier process or instance left behind, or whose check failed.
        self.left_behind: dict[str, list[OpenRequest]] = {}

    async def load(self) -> None:
        """Reads what was left behind, and forgets conversations that rest for long."""
        await self._leave_behind("1", ())
        async with self._database.writing() as db:
            old = "SELECT conversation_id FROM journals WHERE used_at < ?"
            limit = int(self._clock()) - _KEPT_SECONDS
            await db.execute(
                f"DELETE FROM journal_parts WHERE conversation_id IN ({old})", (limit,)
            )
            await db.execute("DELETE FROM journals WHERE used_at < ?", (limit,))

    async def leave_behind(self, request_id: int) -> None:
        """What a request saved could not be checked: the next of its conversation does it."""
        await self._leave_behind("id = ?", (request_id,))

    async def _leave_behind(self, condition: str, values: tuple[Any, ...]) -> None:
        async with self._database.reading() as db:
            rows = await db.execute_fetchall(
                "SELECT id, session_id, conversation_id, loaded, loaded_fingerprint, sent,"
                f" sent_fingerprint FROM journal_requests WHERE {condition} ORDER BY id",
                values,
            )
        for row in rows:
            request = OpenRequest(*row[:3], Fingerprint(*row[3:5]), Fingerprint(*row[5:]))
            self.left_behind.setdefault(request.conversation_id, []).append(request)

    async def open(
        self,
        session_id: str,
        conversation_id: str,
        loaded: Fingerprint,
        sent: Fingerprint,
        history: Callable[[], History],
    ) -> int:
        """Notes a request that is about to be cut.

        Args:
            session_id: Its session.
            conversation_id: Where it will be saved.
            loaded: Its history before the cut.
            sent: What the host would save of the cut list.
            history: Makes the history as the host would save it; called, in a
                thread, only if the journal does not hold it yet.

        Returns:
            The id to ``close`` it by.
        """
        parts = []
        if await self._fingerprint_of(conversation_id) != loaded:
            parts = [(0, await asyncio.to_thread(lambda: _packed(history())))]
        async with self._database.writing() as db:
            if parts:
                await self._write(db, session_id, conversation_id, loaded, parts)
            cursor = await db.execute(
                "INSERT INTO journal_requests (session_id, conversation_id, time, loaded,"
                " loaded_fingerprint, sent, sent_fingerprint) VALUES (?, ?, ?, ?, ?, ?, ?)",
                (session_id, conversation_id, int(self._clock()), *loaded, *sent),
            )
        return cursor.lastrowid

    async def close(self, request_id: int) -> None:
        """Removes the row of a request whose saved list was checked."""
        async with self._database.writing() as db:
            await db.execute("DELETE FROM journal_requests WHERE id = ?", (request_id,))

    async def follow(self, session_id: str, conversation_id: str, history: History) -> None:
        """Adds what a finished request saved; only for conversations that are held already."""
        held = await self._fingerprint_of(conversation_id)
        if held is None:
            return
        now = await asyncio.to_thread(fingerprint, history)
        if now == held:
            return
        start = held.count if await asyncio.to_thread(_continues, history, held) else 0
        async with self._database.reading() as db:
            rows = await db.execute_fetchall(
                "SELECT count(*) FROM journal_parts WHERE conversation_id = ?", (conversation_id,)
            )
        if next(iter(rows))[0] >= _PARTS:
            start = 0
        body = await asyncio.to_thread(_packed, history[start:])
        async with self._database.writing() as db:
            await self._write(db, session_id, conversation_id, now, [(start, body)])

    async def _write(
        self,
        db: aiosqlite.Connection,
        session_id: str,
        conversation_id: str,
        held: Fingerprint,
        parts: list[tuple[int, bytes]],
    ) -> None:
        """Writes parts in place of those that begin where they do, or behind."""
        await db.execute(
            "DELETE FROM journal_parts WHERE conversation_id = ? AND start >= ?",
            (conversation_id, parts[0][0]),
        )
        await db.executemany(
            "INSERT INTO journal_parts VALUES (?, ?, ?)",
            [(conversation_id, start, body) for start, body in parts],
        )
        await db.execute(
            "INSERT OR REPLACE INTO journals VALUES (?, ?, ?, ?, ?)",
            (conversation_id, session_id, *held, int(self._clock())),
        )

    async def _fingerprint_of(self, conversation_id: str) -> Fingerprint | None:
        """What the journal holds of a conversation; None if nothing."""
        async with self._database.reading() as db:
            rows = await db.execute_fetchall(
                "SELECT messages, fingerprint FROM journals WHERE conversation_id = ?",
                (conversation_id,),
            )
        return next((Fingerprint(*row) for row in rows), None)

    async def repaired(self, request: OpenRequest, stored: History) -> History | None:
        """What a conversation should hold, if it was saved from that cut; else None.

        Args:
            request: A request that was left behind.
            stored: The conversation as the host holds it now, in the form it saves.

        Raises:
            JournalDamaged: It was saved from the cut, and the journal cannot give its
                history back.
        """
        if not await asyncio.to_thread(_saved_from, request, stored):
            return None
        async with self._database.reading() as db:
            rows = await db.execute_fetchall(
                "SELECT body FROM journal_parts WHERE conversation_id = ? ORDER BY start",
                (request.conversation_id,),
            )
        history = await asyncio.to_thread(_unpacked, [row[0] for row in rows], request.loaded)
        return [*history, *stored[request.sent.count - 1 :]]

    async def forget(self, session_id: str, kept: Collection[str] = ()) -> None:
        """Drops a session's conversations but those to keep and those with a running request."""
        condition = (
            "session_id = ? AND conversation_id NOT IN (SELECT value FROM json_each(?))"
            " AND conversation_id NOT IN (SELECT conversation_id FROM journal_requests)"
        )
        values = (session_id, json.dumps(list(kept)))
        async with self._database.writing() as db:
            rows = await db.execute_fetchall(
                f"SELECT conversation_id FROM journals WHERE {condition}", values
            )
            keys = [(row[0],) for row in rows]
            await db.executemany("DELETE FROM journal_parts WHERE conversation_id = ?", keys)
            await db.executemany("DELETE FROM journals WHERE conversation_id = ?", keys)


def _saved_from(request: OpenRequest, stored: History) -> bool:
    sent, loaded = request.sent, request.loaded
    if fingerprint(stored[: sent.count]) != sent:
        return False
    return fingerprint(stored[: loaded.count]) != loaded


def _continues(history: History, held: Fingerprint) -> bool:
    return fingerprint(history[: held.count]) == held


def _packed(history: History) -> bytes:
    return zlib.compress(json.dumps(history).encode(), 6)


def _unpacked(bodies: list[bytes], wanted: Fingerprint) -> History:
    try:
        history = [m for body in bodies for m in json.loads(zlib.decompress(body))]
        found = fingerprint(history[: wanted.count])
    except (zlib.error, ValueError, TypeError, AttributeError) as error:
        raise JournalDamaged(f"the journal cannot be read: {error}") from error
    if found != wanted:
        raise JournalDamaged("the journal holds another history")
    return history[: wanted.count]
