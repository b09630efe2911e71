"""The plugin's database file: one connection, one transaction at a time.

Invariants:

* One long-lived connection in WAL mode, used by one caller at a time, so nobody
  reads what another has not committed. Each write is one transaction: a failed or
  cancelled one leaves nothing half-written.
* Every SQLite error leaves as ``StorageUnavailable``; the first of a row of
  failures is logged, and so is the recovery.
* A connection that was lost while in use, or could not be opened, is opened by the
  next caller.
* A file that is no usable database of ours is moved aside, never deleted; one that
  is only locked, read-only or out of reach stays where it is.
"""

import asyncio
import contextlib
import logging
import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiosqlite

from .errors import NO_DATABASE, StorageUnavailable
from .migrations import migrate

logger = logging.getLogger("astrbot")

# How long a request may wait for another process that holds the database.
_BUSY_SECONDS = 2
# How long a search may take, and how many may run at a time.
_SEARCH_SECONDS = 10
_SEARCHES = 2
_SEARCH_MAPPED_BYTES = 1 << 30
_INCREMENTAL = 2
# Free pages given back at once; a few milliseconds.
_WIPED_PAGES = 500

_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
# Errors at opening that mean the file itself is no use; all others (read-only,
# locked, disk full) pass, and moving the file away would only hide it.
_UNUSABLE = (*_DAMAGED, sqlite3.SQLITE_ERROR)
# After these the connection may belong to a file that is damaged or gone.
_LOST = (*_DAMAGED, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)


def _code(error: BaseException) -> int:
    code = getattr(error, "sqlite_errorcode", 0)
    moved = code == sqlite3.SQLITE_READONLY_DBMOVED
    return sqlite3.SQLITE_IOERR if moved else code & 0xFF


class Database:
    """An open database; use ``Database.open``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.closed = False
        # A read-only disk still reads: the two kinds fail and recover apart.
        self._problems: dict[str, str] = {}
        self._connection: aiosqlite.Connection | None = None
        self._lock = asyncio.Lock()
        self._searches = asyncio.Semaphore(_SEARCHES)
        self._damaged = False

    @classmethod
    async def open(cls, path: Path) -> "Database":
        """Opens or creates the file and brings it to the newest schema.

        Where not even a new database can be opened, that is logged, every use fails
        with ``StorageUnavailable``, and each tries again.
        """
        database = cls(path)
        try:
            database._connection = await _open_or_replace(path)
        except (OSError, sqlite3.Error) as error:
            logger.warning("[context_manager] database not available, chats go on: %s", error)
            database._problems["open"] = str(error)
        return database

    async def close(self) -> None:
        """Closes the connection; what runs on it ends first."""
        self.closed = True
        async with self._lock:
            await self._drop()

    @property
    def problem(self) -> str | None:
        """Why the database cannot be used now; None while it can."""
        return next(iter(self._problems.values()), None)

    @contextlib.asynccontextmanager
    async def reading(self) -> AsyncIterator[aiosqlite.Connection]:
        """The connection, to read one state of the database."""
        async with self._lock, self._watched("read"):
            yield await self._connected()

    @contextlib.asynccontextmanager
    async def writing(self) -> AsyncIterator[aiosqlite.Connection]:
        """The connection within one transaction; an exception rolls it back."""
        async with self._lock, self._watched("write"):
            connection = await self._connected()
            try:
                await connection.execute("BEGIN IMMEDIATE")
                yield connection
                await connection.commit()
            except BaseException:
                # Queued behind whatever a cancelled caller left running.
                with contextlib.suppress(sqlite3.Error):
                    await connection.rollback()
                raise

    async def searching[T](self, read: Callable[[sqlite3.Connection], T]) -> T:
        """Reads in a thread, on a read-only connection of its own that nobody waits for.

        Raises:
            StorageUnavailable: The file cannot be read, or it took too long.
        """
        if self.closed:
            raise StorageUnavailable(NO_DATABASE)
        try:
            async with self._searches:
                result = await asyncio.to_thread(_read_apart, self.path, read)
        except sqlite3.Error as error:
            self._note_failure("search", error)
            raise StorageUnavailable(f"搜索失败：{error} / The search failed: {error}") from error
        self._note_success("search")
        return result

    async def wipe_free_pages(self) -> None:
        """Gives the pages of deleted rows back, so that the files no longer hold their text.

        In bounded steps: others get at the database in between.
        """
        more = True
        while more:
            more = await self._wipe_step()

    async def _wipe_step(self) -> bool:
        """Gives some free pages back; whether there are more."""
        async with self._lock, self._watched("write"):
            connection = await self._connected()
            [(mode,)] = await connection.execute_fetchall("PRAGMA auto_vacuum")
            if mode != _INCREMENTAL:
                await connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
                await connection.execute("VACUUM")
            await connection.execute_fetchall(f"PRAGMA incremental_vacuum({_WIPED_PAGES})")
            [(left,)] = await connection.execute_fetchall("PRAGMA freelist_count")
            if not left:
                await connection.execute_fetchall("PRAGMA wal_checkpoint(TRUNCATE)")
            return left > 0

    @contextlib.asynccontextmanager
    async def _watched(self, operation: str) -> AsyncIterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError, ValueError) as error:
            # ValueError: a text that SQLite cannot store.
            self._damaged |= _code(error) in _DAMAGED
            if _code(error) in _LOST:
                await self._drop()
            self._note_failure(operation, error)
            raise StorageUnavailable(
                f"插件的数据库现在不能使用：{error}"
                f" / The plugin's database cannot be used now: {error}"
            ) from error
        self._note_success(operation, "open")

    def _note_failure(self, operation: str, error: Exception) -> None:
        if not self._problems.keys() & {operation, "open"}:
            logger.warning("[context_manager] database: no %s, chats go on: %s", operation, error)
            self._problems[operation] = str(error)

    def _note_success(self, operation: str, *more: str) -> None:
        if [key for key in (operation, *more) if self._problems.pop(key, None)]:
            logger.info("[context_manager] database usable again (%s)", operation)

    async def _connected(self) -> aiosqlite.Connection:
        if self.closed:
            raise StorageUnavailable(NO_DATABASE)
        if self._connection is None:
            self._connection = await _open_or_replace(self.path, check=self._damaged)
            self._damaged = False
        return self._connection

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                await connection.close()


async def _open_or_replace(path: Path, check: bool = False) -> aiosqlite.Connection:
    """Opens a database; moves it aside and makes a new one if the file is no use."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        return await _connect(path, check)
    except sqlite3.Error as error:
        if _code(error) not in _UNUSABLE:
            raise
        logger.error(
            "[context_manager] the database could not be used (%s); it was moved to %s and a new "
            "one was created",
            error,
            _move_aside(path),
        )
    return await _connect(path)


async def _connect(path: Path, check: bool = False) -> aiosqlite.Connection:
    # Transactions are begun by hand: the driver's own would begin too late.
    connection = await aiosqlite.connect(path, isolation_level=None, timeout=_BUSY_SECONDS)
    try:
        # Only heeded while the file is new; an older one gets it at its first wiping.
        await connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        # Deleted texts leave no trace on pages that stay in use.
        await connection.execute("PRAGMA secure_delete = FAST")
        await connection.execute("PRAGMA journal_mode = WAL")
        await connection.execute("PRAGMA synchronous = NORMAL")
        if check:
            await _check(connection)
        await migrate(connection)
    except BaseException:
        await connection.close()
        raise
    return connection


def _read_apart[T](path: Path, read: Callable[[sqlite3.Connection], T]) -> T:
    """Reads on a connection of its own; a read that takes too long is interrupted."""
    end = time.monotonic() + _SEARCH_SECONDS
    connection = sqlite3.connect(
        f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=_BUSY_SECONDS
    )
    try:
        connection.execute(f"PRAGMA mmap_size = {_SEARCH_MAPPED_BYTES}")
        connection.set_progress_handler(lambda: time.monotonic() > end, 2000)
        return read(connection)
    finally:
        connection.close()


async def _check(connection: aiosqlite.Connection) -> None:
    """Looks for damage that opening alone does not show."""
    [(found,)] = await connection.execute_fetchall("PRAGMA quick_check(1)")
    if found != "ok":
        error = sqlite3.DatabaseError(found)
        error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        raise error


def _move_aside(path: Path) -> Path:
    """Renames a database and its companions; an older one moved aside stays."""
    name = f"{path.name}.broken-{int(time.time())}"
    aside, number = path.with_name(name), 1
    while aside.exists():
        number += 1
        aside = path.with_name(f"{name}-{number}")
    for suffix in ("", "-wal", "-shm"):
        source = path.with_name(path.name + suffix)
        if source.exists():
            source.rename(aside.with_name(aside.name + suffix))
    return aside
