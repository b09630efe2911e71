"""Memories and their vectors in the database.

Invariants:

* Every call names a session, and touches nothing of another one.
* A memory and its vector come and go in one transaction; an edited text has no vector
  until it gets a new one. What is gone is gone from the files too.
* What is compared with the memories of a session is stored, or refused, in the same
  transaction, so that two writers cannot store the same twice.
"""

import contextlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import aiosqlite

from .database import Database
from .errors import InvalidChange, MemoryRefused, StorageUnavailable
from .memory import Entry, Known


@dataclass(frozen=True, slots=True)
class Memory:
    """One row of ``memories``; times in unix seconds.

    Attributes:
        about: Whom it is about; empty if that needs no telling.
        source: ``model``, ``user`` (page), ``command`` or ``import``.
        flagged: Whether it reads like an instruction to a model.
        reviewed: Whether a person has seen it and found it good.
        recalled_at: When it was last sent with a request; None if never.
    """

    id: int
    session_id: str
    text: str
    tags: tuple[str, ...]
    about: str
    source: str
    flagged: bool
    reviewed: bool
    created_at: int
    recalled_at: int | None

    @property
    def known(self) -> Known:
        """The memory as others are compared with it."""
        return Known(self.id, self.text, self.about)


@dataclass(frozen=True, slots=True)
class Vector:
    """The embedding of one memory.

    Attributes:
        memory_id: The memory.
        model: What made it.
        values: 32-bit floats, little-endian, ``dimension`` of them.
    """

    memory_id: int
    model: str
    dimension: int
    values: bytes


Check = Callable[[list[Memory], list[Vector]], None]

_COLUMNS = ", ".join(Memory.__slots__)
_VECTOR_COLUMNS = "memory_id, model, dimension, vector"


def _memory(row: Iterable[Any]) -> Memory:
    values = dict(zip(Memory.__slots__, row, strict=True))
    values["tags"] = tuple(json.loads(values["tags"]))
    return Memory(**values | {n: bool(values[n]) for n in ("flagged", "reviewed")})


class MemoryStore:
    """Reads and writes the memories of all sessions."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def all(self, session_id: str) -> list[Memory]:
        """The memories of a session, oldest first."""
        async with self._database.reading() as db:
            return await _of_session(db, session_id)

    async def newest(
        self, session_id: str, limit: int, offset: int = 0
    ) -> tuple[list[Memory], int]:
        """Memories of a session, newest first, and how many there are."""
        async with self._database.reading() as db:
            rows = await db.execute_fetchall(
                f"SELECT {_COLUMNS} FROM memories WHERE session_id = ?"
                " ORDER BY id DESC LIMIT ? OFFSET ?",
                (session_id, limit, offset),
            )
            return [_memory(row) for row in rows], await _count(db, session_id)

    async def get(self, session_id: str, memory_id: int) -> Memory | None:
        """One memory of a session, or None."""
        async with self._database.reading() as db:
            return await _one(db, session_id, memory_id)

    async def add(
        self,
        session_id: str,
        entry: Entry,
        source: str,
        now: int,
        check: Check,
        vector: tuple[str, bytes, int] | None = None,
    ) -> Memory:
        """Stores a memory.

        Args:
            session_id: The session; it has a row.
            entry: What is remembered.
            source: Where it came from.
            now: Unix seconds.
            check: Raises if it must not stand beside the session's memories.
            vector: Model, values and dimension of its embedding.

        Raises:
            MemoryRefused: By ``check``.
        """
        async with self._database.writing() as db:
            check(await _of_session(db, session_id), await _vectors(db, session_id))
            cursor = await db.execute(
                "INSERT INTO memories (session_id, text, text_key, tags, about, source, flagged,"
                " created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (session_id, *_values(entry), source, entry.flagged, now),
            )
            if vector is not None:
                model, values, dimension = vector
                await _put_vector(db, Vector(cursor.lastrowid, model, dimension, values))
            return await _one(db, session_id, cursor.lastrowid)

    async def edit(
        self,
        session_id: str,
        memory_id: int,
        entry: Entry,
        reviewed: bool | None,
        check: Check,
    ) -> Memory:
        """Changes a memory as a person does.

        Raises:
            InvalidChange: The session has no such memory.
            MemoryRefused: By ``check``, which sees the other memories only.
        """
        async with self._database.writing() as db:
            current = await _one(db, session_id, memory_id)
            if current is None:
                raise InvalidChange("id", "没有这条记忆 / this session has no such memory")
            others = [m for m in await _of_session(db, session_id) if m.id != memory_id]
            changed = entry.text != current.text
            if changed:
                check(others, [])
                await db.execute("DELETE FROM memory_vectors WHERE memory_id = ?", (memory_id,))
            await db.execute(
                "UPDATE memories SET text = ?, text_key = ?, tags = ?, about = ?, flagged = ?,"
                " reviewed = ? WHERE id = ?",
                (
                    *_values(entry),
                    entry.flagged,
                    # A changed text has been seen by whoever changed it.
                    (changed or current.reviewed) if reviewed is None else reviewed,
                    memory_id,
                ),
            )
            edited = await _one(db, session_id, memory_id)
        if changed:
            await self._wipe()
        return edited

    async def delete(self, session_id: str, ids: Sequence[int]) -> list[Memory]:
        """Deletes memories of a session; ids of others are passed over.

        Returns:
            What was deleted, by id.
        """
        async with self._database.writing() as db:
            found = [m for m in await _of_session(db, session_id) if m.id in set(ids)]
            await _delete(db, [memory.id for memory in found])
        if found:
            await self._wipe()
        return found

    async def clear(self, session_id: str) -> int:
        """Deletes every memory of a session; returns how many there were."""
        async with self._database.writing() as db:
            ids = [memory.id for memory in await _of_session(db, session_id)]
            await _delete(db, ids)
        if ids:
            await self._wipe()
        return len(ids)

    async def _wipe(self) -> None:
        # The memory is deleted, whether the files are cleaned now or with the next one.
        with contextlib.suppress(StorageUnavailable):
            await self._database.wipe_free_pages()

    async def note_recalled(self, session_id: str, ids: Sequence[int], now: int) -> None:
        """Notes that memories were sent with a request."""
        async with self._database.writing() as db:
            await db.executemany(
                "UPDATE memories SET recalled_at = ? WHERE id = ? AND session_id = ?",
                [(now, memory_id, session_id) for memory_id in ids],
            )

    # Vectors

    async def vectors(self, session_id: str) -> list[Vector]:
        """The vectors of a session's memories."""
        async with self._database.reading() as db:
            return await _vectors(db, session_id)

    async def put_vectors(self, texts: dict[int, str], vectors: Sequence[Vector]) -> None:
        """Stores vectors of memories whose text is still the one they were made from."""
        async with self._database.writing() as db:
            for vector in vectors:
                rows = await db.execute_fetchall(
                    "SELECT text FROM memories WHERE id = ?", (vector.memory_id,)
                )
                if [row[0] for row in rows] == [texts[vector.memory_id]]:
                    await _put_vector(db, vector)


def _values(entry: Entry) -> tuple[str, str, str, str]:
    return entry.text, entry.key, json.dumps(entry.tags, ensure_ascii=False), entry.about


async def _of_session(db: aiosqlite.Connection, session_id: str) -> list[Memory]:
    rows = await db.execute_fetchall(
        f"SELECT {_COLUMNS} FROM memories WHERE session_id = ? ORDER BY id", (session_id,)
    )
    return [_memory(row) for row in rows]


async def _one(db: aiosqlite.Connection, session_id: str, memory_id: int) -> Memory | None:
    rows = await db.execute_fetchall(
        f"SELECT {_COLUMNS} FROM memories WHERE id = ? AND session_id = ?", (memory_id, session_id)
    )
    return next((_memory(row) for row in rows), None)


async def _count(db: aiosqlite.Connection, session_id: str) -> int:
    [(count,)] = await db.execute_fetchall(
        "SELECT count(*) FROM memories WHERE session_id = ?", (session_id,)
    )
    return count


async def _vectors(db: aiosqlite.Connection, session_id: str) -> list[Vector]:
    rows = await db.execute_fetchall(
        f"SELECT {_VECTOR_COLUMNS} FROM memory_vectors WHERE memory_id IN"
        " (SELECT id FROM memories WHERE session_id = ?) ORDER BY memory_id",
        (session_id,),
    )
    return [Vector(*row) for row in rows]


async def _put_vector(db: aiosqlite.Connection, vector: Vector) -> None:
    await db.execute(
        f"INSERT OR REPLACE INTO memory_vectors ({_VECTOR_COLUMNS}) VALUES (?, ?, ?, ?)",
        (vector.memory_id, vector.model, vector.dimension, vector.values),
    )


async def _delete(db: aiosqlite.Connection, ids: Sequence[int]) -> None:
    for table, column in (("memory_vectors", "memory_id"), ("memories", "id")):
        await db.executemany(f"DELETE FROM {table} WHERE {column} = ?", [(i,) for i in ids])


async def add_imported(
    db: aiosqlite.Connection, session_id: str, entries: Sequence[tuple[Entry, dict[str, Any]]]
) -> None:
    """Adds the memories of a file, inside the transaction of its import.

    Args:
        db: The connection.
        session_id: The session.
        entries: Each memory with its ``source``, ``reviewed``, ``created_at`` and
            ``recalled_at``.
    """
    await db.executemany(
        "INSERT INTO memories (session_id, text, text_key, tags, about, flagged, source, reviewed,"
        " created_at, recalled_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (
                session_id,
                *_values(entry),
                entry.flagged,
                *(more[n] for n in ("source", "reviewed", "created_at", "recalled_at")),
            )
            for entry, more in entries
        ],
    )


async def known_of(db: aiosqlite.Connection, session_id: str) -> list[Known]:
    """What a session remembers, oldest first, inside a transaction."""
    return [memory.known for memory in await _of_session(db, session_id)]


def refuse_full(count: int, limit: int) -> None:
    """Refuses a memory too many.

    Raises:
        MemoryRefused: ``memory_full``.
    """
    if count >= limit:
        raise MemoryRefused("memory_full", count=count, limit=limit)
