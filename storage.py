"""The plugin's database: sessions, summary versions, remembered windows.

Invariants:

* One long-lived connection in WAL mode; writes are serialised by a lock and each
  is one transaction, so a failed write leaves nothing half-written.
* Every SQLite error leaves as ``StorageUnavailable``; the first of a row of
  failures is logged, and so is the recovery.
* A database that cannot be opened or migrated is moved aside, never deleted.
* ``revision`` moves with every change of editable content and with nothing else.
"""

import asyncio
import contextlib
import logging
import sqlite3
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiosqlite

from .context_logic import WindowMark
from .errors import InvalidChange, StaleRevision, StorageUnavailable, UnknownSession
from .message_text import clean_text
from .migrations import migrate
from .settings import Settings

logger = logging.getLogger("astrbot")

EDITABLE = (
    "fixed_memory",
    "summary",
    "compress_prompt",
    "recent_context_token_budget",
    "summary_target_tokens",
)
# What may be set for all sessions at once, and as the default for new ones.
SHARED = ("recent_context_token_budget", "summary_target_tokens")

# How long a request may wait for another process that holds the database.
_BUSY_SECONDS = 2

# Errors that mean the file itself is no use; all others (read-only, locked,
# disk full) pass, and moving the file away would only hide it from its owner.
_UNUSABLE = (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


@dataclass(frozen=True, slots=True)
class Session:
    """One row of ``sessions``; times in unix seconds, sizes in tokens."""

    session_id: str
    display_name: str
    platform: str
    fixed_memory: str
    summary: str
    compress_prompt: str
    recent_context_token_budget: int
    summary_target_tokens: int
    last_seen_at: int
    updated_at: int
    revision: str
    kind: str


@dataclass(frozen=True, slots=True)
class Version:
    """One text that was the summary, or was offered to be."""

    id: int
    session_id: str
    created_at: int
    source: str
    model: str
    conversation_id: str | None
    covered: int
    prefix_hash: str
    tokens: int
    text: str
    conflicting: bool


_SESSION_COLUMNS = ", ".join(Session.__slots__)
_VERSION_COLUMNS = ", ".join(Version.__slots__)


def kind_of(session_id: str) -> str:
    """``group``, ``private``, ``webchat`` or ``other``, from the host's id."""
    platform, _, rest = session_id.partition(":")
    if platform == "webchat":
        return "webchat"
    message_type = rest.partition(":")[0]
    return {"GroupMessage": "group", "FriendMessage": "private"}.get(message_type, "other")


def _session(row: Iterable[Any]) -> Session:
    values = dict(zip(Session.__slots__, row, strict=True))
    return Session(**values | {"revision": str(values["revision"])})


def _version(row: Iterable[Any]) -> Version:
    values = dict(zip(Version.__slots__, row, strict=True))
    return Version(**values | {"conflicting": bool(values["conflicting"])})


def _like(text: str) -> str:
    for character in "\\%_":
        text = text.replace(character, "\\" + character)
    return f"%{text}%"


class Storage:
    """The database; use ``Storage.open``."""

    def __init__(self, path: Path, connection: aiosqlite.Connection, defaults: Settings) -> None:
        self.path = path
        # A read-only disk still reads: the two kinds fail and recover apart.
        self._problems: dict[str, str] = {}
        self._connection = connection
        self._defaults = defaults
        self._write_lock = asyncio.Lock()

    @classmethod
    async def open(cls, path: Path, defaults: Settings) -> "Storage":
        """Opens or creates the database.

        Args:
            path: The database file; its folder is created.
            defaults: First defaults of new sessions.

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
        return cls(path, connection, defaults)

    async def close(self) -> None:
        """Closes the connection; running writes end first."""
        async with self._write_lock:
            await self._connection.close()

    # Sessions

    async def see_session(
        self, session_id: str, display_name: str, platform: str, now: int
    ) -> Session:
        """Notes a model request: the session has a row, with its latest name."""
        name = clean_text(display_name)
        async with self._writing() as db:
            defaults = await self._default_values(db)
            await db.execute(
                "INSERT INTO sessions (session_id, display_name, platform, kind, last_seen_at,"
                " updated_at, recent_context_token_budget, summary_target_tokens)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (session_id) DO UPDATE SET"
                " last_seen_at = excluded.last_seen_at, display_name ="
                " CASE excluded.display_name WHEN '' THEN display_name"
                " ELSE excluded.display_name END",
                (
                    session_id,
                    name,
                    platform,
                    kind_of(session_id),
                    now,
                    now,
                    *(defaults[column] for column in SHARED),
                ),
            )
            return await self._required(db, session_id)

    async def get_session(self, session_id: str) -> Session | None:
        """A session, or None."""
        async with self._reading() as db:
            return await self._fetch(db, session_id)

    async def update_session(
        self, session_id: str, changes: Mapping[str, Any], revision: str | None, now: int
    ) -> Session:
        """Changes editable columns.

        Args:
            session_id: The session.
            changes: New values by column, already validated.
            revision: The revision the caller has read; None overwrites.
            now: Unix seconds.

        Raises:
            UnknownSession: There is no such session.
            StaleRevision: It was changed since; carries the current row.
            InvalidChange: A column that is not editable.
        """
        for column in changes:
            if column not in EDITABLE:
                raise InvalidChange(column, "unknown field")
        async with self._writing() as db:
            current = await self._required(db, session_id)
            if revision is not None and revision != current.revision:
                raise StaleRevision(current)
            await self._change(db, current, changes, now)
            if changes.get("summary", current.summary) != current.summary:
                await self._add_version(
                    db, session_id, now, source="user", text=str(changes["summary"])
                )
            return await self._required(db, session_id)

    async def list_sessions(
        self, q: str, kind: str | None, platform: str | None, limit: int, offset: int
    ) -> tuple[list[Session], int]:
        """Sessions, last seen first, and how many match in all."""
        where, values = ["1"], []
        if q:
            columns = ("display_name", "session_id", "fixed_memory", "summary")
            where.append("(" + " OR ".join(f"{c} LIKE ? ESCAPE '\\'" for c in columns) + ")")
            values += [_like(q)] * len(columns)
        for column, value in (("kind", kind), ("platform", platform)):
            if value:
                where.append(f"{column} = ?")
                values.append(value)
        condition = " AND ".join(where)
        async with self._reading() as db:
            count = await db.execute_fetchall(
                f"SELECT count(*) FROM sessions WHERE {condition}", values
            )
            rows = await db.execute_fetchall(
                f"SELECT {_SESSION_COLUMNS} FROM sessions WHERE {condition}"
                " ORDER BY last_seen_at DESC, session_id LIMIT ? OFFSET ?",
                [*values, limit, offset],
            )
        return [_session(row) for row in rows], next(iter(count))[0]

    async def apply_to_all(self, changes: Mapping[str, int], now: int) -> int:
        """Sets values for every session and as defaults for new ones.

        Returns:
            The number of sessions.
        """
        async with self._writing() as db:
            for column, value in changes.items():
                if column not in SHARED:
                    raise InvalidChange(column, "unknown field")
                await db.execute(
                    "INSERT INTO defaults (name, value) VALUES (?, ?)"
                    " ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                    (column, value),
                )
                await db.execute(
                    f"UPDATE sessions SET {column} = ?, revision = revision + 1, updated_at = ?"
                    f" WHERE {column} <> ?",
                    (value, now, value),
                )
            rows = await db.execute_fetchall("SELECT count(*) FROM sessions")
            return next(iter(rows))[0]

    # Summaries

    async def commit_summary(
        self,
        session_id: str,
        text: str,
        *,
        base_summary: str,
        model: str,
        conversation_id: str | None,
        covered: int,
        prefix_hash: str,
        tokens: int,
        source: str,
        now: int,
    ) -> tuple[Version, bool]:
        """Stores a finished summary, unless a person edited it meanwhile.

        Args:
            session_id: The session.
            text: The new summary.
            base_summary: The summary the job started from.
            model: Model that wrote it.
            conversation_id: Conversation it covers.
            covered: Messages of that conversation it covers.
            prefix_hash: Hash of those messages.
            tokens: Estimated tokens of the text.
            source: ``model`` or ``auto``.
            now: Unix seconds.

        Returns:
            The new version, and whether it conflicts with an edit; a conflicting
            version does not become the summary.
        """
        text = clean_text(text)
        async with self._writing() as db:
            current = await self._required(db, session_id)
            conflicting = current.summary != base_summary
            version_id = await self._add_version(
                db,
                session_id,
                now,
                source=source,
                text=text,
                model=model,
                conversation_id=conversation_id,
                covered=covered,
                prefix_hash=prefix_hash,
                tokens=tokens,
                conflicting=int(conflicting),
            )
            if not conflicting:
                await self._change(db, current, {"summary": text}, now)
            rows = await db.execute_fetchall(
                f"SELECT {_VERSION_COLUMNS} FROM summary_versions WHERE id = ?", (version_id,)
            )
            return _version(next(iter(rows))), conflicting

    async def latest_coverage(self, session_id: str) -> Version | None:
        """The newest summary a model made that was taken over, or None."""
        async with self._reading() as db:
            rows = await db.execute_fetchall(
                f"SELECT {_VERSION_COLUMNS} FROM summary_versions WHERE session_id = ?"
                " AND conflicting = 0 AND source IN ('model', 'auto') ORDER BY id DESC LIMIT 1",
                (session_id,),
            )
        return next((_version(row) for row in rows), None)

    # Windows

    async def get_window(self, conversation_id: str) -> WindowMark | None:
        """The remembered window of a conversation, or None."""
        async with self._reading() as db:
            rows = await db.execute_fetchall(
                "SELECT message_index, content_hash, settings_key FROM windows"
                " WHERE conversation_id = ?",
                (conversation_id,),
            )
        return next((WindowMark(*row) for row in rows), None)

    async def set_window(self, conversation_id: str, session_id: str, mark: WindowMark) -> None:
        """Remembers the window of a conversation."""
        async with self._writing() as db:
            await db.execute(
                "INSERT OR REPLACE INTO windows VALUES (?, ?, ?, ?, ?)",
                (
                    conversation_id,
                    session_id,
                    mark.message_index,
                    mark.content_hash,
                    mark.settings_key,
                ),
            )

    # Inside a transaction

    async def _fetch(self, db: aiosqlite.Connection, session_id: str) -> Session | None:
        rows = await db.execute_fetchall(
            f"SELECT {_SESSION_COLUMNS} FROM sessions WHERE session_id = ?", (session_id,)
        )
        return next((_session(row) for row in rows), None)

    async def _required(self, db: aiosqlite.Connection, session_id: str) -> Session:
        session = await self._fetch(db, session_id)
        if session is None:
            raise UnknownSession(f"unknown session: {session_id}")
        return session

    async def _default_values(self, db: aiosqlite.Connection) -> dict[str, int]:
        rows = await db.execute_fetchall("SELECT name, value FROM defaults")
        return {column: getattr(self._defaults, column) for column in SHARED} | dict(rows)

    async def _change(
        self, db: aiosqlite.Connection, current: Session, changes: Mapping[str, Any], now: int
    ) -> None:
        cleaned = {
            column: clean_text(value) if isinstance(value, str) else value
            for column, value in changes.items()
        }
        changed = {c: v for c, v in cleaned.items() if getattr(current, c) != v}
        if changed:
            assignments = ", ".join(f"{column} = ?" for column in changed)
            await db.execute(
                f"UPDATE sessions SET {assignments}, revision = revision + 1, updated_at = ?"
                " WHERE session_id = ?",
                (*changed.values(), now, current.session_id),
            )

    async def _add_version(
        self, db: aiosqlite.Connection, session_id: str, now: int, **columns: Any
    ) -> int:
        columns["text"] = clean_text(columns["text"])
        names = ", ".join(columns)
        places = ", ".join("?" * len(columns))
        cursor = await db.execute(
            f"INSERT INTO summary_versions (session_id, created_at, {names})"
            f" VALUES (?, ?, {places})",
            (session_id, now, *columns.values()),
        )
        return cursor.lastrowid

    # Connections

    @property
    def problem(self) -> str | None:
        """Why the database cannot be used now; None while it can."""
        return next(iter(self._problems.values()), None)

    @contextlib.asynccontextmanager
    async def _reading(self) -> AsyncIterator[aiosqlite.Connection]:
        with self._watched("read"):
            yield self._connection

    @contextlib.asynccontextmanager
    async def _writing(self) -> AsyncIterator[aiosqlite.Connection]:
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
