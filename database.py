"""The plugin's database file: one connection, one transaction at a time.

Invariants:

* One long-lived connection in WAL mode; writes are serialised by a lock and each
  is one transaction, so a failed write leaves nothing half-written.
* Every SQLite error leaves as ``StorageUnavailable``; the first of a row of
  failures is logged, and so is the recovery.
* A database that cannot be opened or migrated is moved aside, never deleted.
"""

import asyncio
import contextlib
import logging
import sqlite3
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiosqlite

from .errors import StorageUnavailable
from .migrations import migrate

logger = logging.getLogger("astrbot")

# How long a request may wait for another process that holds the database.
_BUSY_SECONDS = 2

# Errors that mean the file itself is no use; all others (read-only, locked,
# disk full) pass, and moving the file away would only hide it from its owner.
_UNUSABLE = (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class Database:
    """An open database; use ``Database.open``."""

    def __init__(self, path: Path, connection: aiosqlite.Connection) -> None:
        self.path = path
        self.closed = False
        # A read-only disk still reads: the two kinds fail and recover apart.
        self._problems: dict[str, str] = {}
        self._connection = connection
        self._write_lock = asyncio.Lock()

    @classmethod
    async def open(cls, path: Path) -> "Database":
        """Opens or creates the file and brings it to the newest schema.

        Raises:
            StorageUnavailable: Not even a new database can be opened there.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                connection = await _connect(path)
            except sqlite3.DatabaseError as error:
                if getattr(error, "sqlite_errorcode", 0) & 0xFF not in _UNUSABLE:
                    raise
                connection = await _reopen(path, error)
        except (OSError, sqlite3.Error) as error:
            raise StorageUnavailable(f"{path}: {error}") from error
        return cls(path, connection)

    async def close(self) -> None:
        """Closes the connection; running writes end first."""
        self.closed = True
        async with self._write_lock:
            await self._connection.close()

    @property
    def problem(self) -> str | None:
        """Why the database cannot be used now; None while it can."""
        return next(iter(self._problems.values()), None)

    @contextlib.asynccontextmanager
    async def reading(self) -> AsyncIterator[aiosqlite.Connection]:
        """The connection, to read."""
        with self._watched("read"):
            yield self._connection

    @contextlib.asynccontextmanager
    async def writing(self) -> AsyncIterator[aiosqlite.Connection]:
        """The connection within one transaction; an exception rolls it back."""
        async with self._write_lock:
            with self._watched("write"):
                # A cancelled request can leave its transaction open behind it.
                await self._connection.rollback()
                await self._connection.execute("BEGIN IMMEDIATE")
                try:
                    yield self._connection
                except BaseException:
                    await self._connection.rollback()
                    raise
                await self._connection.commit()

    @contextlib.contextmanager
    def _watched(self, operation: str) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, ValueError) as error:
            # aiosqlite raises ValueError once the connection is closed.
            if operation not in self._problems:
                logger.warning(
                    "[context_manager] database: no %s, chats go on: %s", operation, error
                )
            self._problems[operation] = str(error)
            raise StorageUnavailable(
                f"The plugin's database cannot be used now: {error}"
            ) from error
        if self._problems.pop(operation, None) is not None:
            logger.info("[context_manager] database usable again (%s)", operation)


async def _connect(path: Path) -> aiosqlite.Connection:
    # Transactions are begun by hand: the driver's own would begin too late.
    connection = await aiosqlite.connect(path, isolation_level=None, timeout=_BUSY_SECONDS)
    try:
        await connection.execute("PRAGMA journal_mode = WAL")
        await connection.execute("PRAGMA synchronous = NORMAL")
        await migrate(connection)
    except BaseException:
        await connection.close()
        raise
    return connection


async def _reopen(path: Path, error: Exception) -> aiosqlite.Connection:
    """Moves a broken database aside and starts a new one."""
    aside = path.with_name(f"{path.name}.broken-{int(time.time())}")
    for suffix in ("", "-wal", "-shm"):
        source = path.with_name(path.name + suffix)
        if source.exists():
            source.rename(aside.with_name(aside.name + suffix))
    logger.error(
        "[context_manager] the database could not be opened (%s); it was moved to %s and a new "
        "one was created",
        error,
        aside,
    )
    return await _connect(path)
