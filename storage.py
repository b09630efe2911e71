"""What the plugin knows: sessions, summary versions, remembered windows.

Invariants:

* Every change is one transaction of the ``Database``; a failed one changes nothing.
* Every SQLite error leaves as ``StorageUnavailable``.
* ``revision`` moves with every change of editable content and with nothing else.
* No version is ever changed. The oldest beyond the limit of the settings are removed,
  but never what says what the summary covers, nor the newest conflicting one.
"""

import json
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

import aiosqlite

from .context_logic import WindowMark
from .database import Database
from .errors import InvalidChange, StaleRevision
from .message_text import clean_text
from .options import FLAGS, SHARED
from .session_rows import (
    EDITABLE,
    SESSION_COLUMNS,
    VERSION_COLUMNS,
    Session,
    Version,
    add_version,
    change_session,
    fetch_session,
    fetch_version,
    kind_of,
    prune_versions,
    required_session,
    session_of_row,
    version_of_row,
)
from .settings import Settings
from .watermark import prefix_hash

__all__ = ["EDITABLE", "SHARED", "Session", "Storage", "Version", "kind_of"]


# Some platforms allow names without end.
_NAME_LENGTH = 200


def _like(text: str) -> str:
    for character in "\\%_":
        text = text.replace(character, "\\" + character)
    return f"%{text}%"


class Storage:
    """Sessions and what belongs to them; use ``Storage.open``."""

    def __init__(self, database: Database, defaults: Settings) -> None:
        self.database = database
        self._defaults = defaults

    @classmethod
    async def open(cls, path: Path, defaults: Settings) -> "Storage":
        """Opens or creates the database.

        Args:
            path: The database file; its folder is created.
            defaults: First defaults of new sessions.
        """
        return cls(await Database.open(path), defaults)

    async def close(self) -> None:
        """Closes the database; running writes end first."""
        await self.database.close()

    @property
    def path(self) -> Path:
        """The database file."""
        return self.database.path

    @property
    def problem(self) -> str | None:
        """Why the database cannot be used now; None while it can."""
        return self.database.problem

    # Sessions

    async def see_session(
        self, session_id: str, display_name: str, platform: str, now: int
    ) -> Session:
        """Notes a model request: the session has a row, with its latest name."""
        async with self.database.writing() as db:
            session_id, name, platform = map(clean_text, (session_id, display_name, platform))
            await self._insert(db, session_id, name, platform, now)
            await db.execute(
                "UPDATE sessions SET last_seen_at = ?,"
                " platform = coalesce(nullif(?, ''), platform),"
                " display_name = coalesce(nullif(?, ''), display_name) WHERE session_id = ?",
                (now, platform, name[:_NAME_LENGTH], session_id),
            )
            return await required_session(db, session_id)

    async def ensure_session(self, session_id: str, platform: str, now: int) -> Session:
        """A session that need not have asked a model; it gets a row if it has none."""
        async with self.database.writing() as db:
            await self._insert(db, session_id, "", platform, now)
            return await required_session(db, session_id)

    async def _insert(
        self, db: aiosqlite.Connection, session_id: str, name: str, platform: str, now: int
    ) -> None:
        defaults = await self.default_values(db)
        await db.execute(
            "INSERT OR IGNORE INTO sessions (session_id, display_name, platform, kind, updated_at,"
            f" {', '.join(SHARED)}) VALUES (?, ?, ?, ?, ?, {', '.join('?' * len(SHARED))})",
            (
                session_id,
                name[:_NAME_LENGTH],
                platform,
                kind_of(session_id),
                now,
                *(defaults[column] for column in SHARED),
            ),
        )

    async def get_session(self, session_id: str) -> Session | None:
        """A session, or None."""
        async with self.database.reading() as db:
            return await fetch_session(db, session_id)

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
        async with self.database.writing() as db:
            current = await required_session(db, session_id)
            if revision is not None and revision != current.revision:
                raise StaleRevision(current)
            changed = await change_session(db, current, changes, now)
            if "summary" in changed:
                text = changed["summary"]
                # An edit refines what is covered; an emptied summary covers nothing.
                covers = {} if text.strip() else {"prefix_hash": prefix_hash([])}
                await self._add_version(db, session_id, now, source="user", text=text, **covers)
            return await required_session(db, session_id)

    async def list_sessions(
        self, q: str, kind: str | None, platform: str | None, limit: int, offset: int
    ) -> tuple[list[Session], int]:
        """Sessions, that of the id first, then last seen first; and how many match in all."""
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
        # The page looks a session up by its id, which may be a part of many others.
        by_id = "session_id = ? DESC, " if q else ""
        async with self.database.reading() as db:
            count = await db.execute_fetchall(
                f"SELECT count(*) FROM sessions WHERE {condition}", values
            )
            rows = await db.execute_fetchall(
                f"SELECT {SESSION_COLUMNS} FROM sessions WHERE {condition}"
                f" ORDER BY {by_id}last_seen_at DESC, session_id LIMIT ? OFFSET ?",
                [*values, *([q] if q else []), limit, offset],
            )
        return [session_of_row(row) for row in rows], next(iter(count))[0]

    async def platforms(self) -> list[str]:
        """The platforms that sessions are from."""
        async with self.database.reading() as db:
            rows = await db.execute_fetchall(
                "SELECT DISTINCT platform FROM sessions WHERE platform <> '' ORDER BY platform"
            )
        return [row[0] for row in rows]

    async def session_ids(self) -> list[str]:
        """All sessions, last seen first."""
        async with self.database.reading() as db:
            rows = await db.execute_fetchall(
                "SELECT session_id FROM sessions ORDER BY last_seen_at DESC, session_id"
            )
        return [row[0] for row in rows]

    async def apply_to_all(self, changes: Mapping[str, Any], now: int) -> int:
        """Sets values for every session and as defaults for new ones.

        Returns:
            The number of sessions.
        """
        async with self.database.writing() as db:
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
        async with self.database.writing() as db:
            current = await required_session(db, session_id)
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
                await change_session(db, current, {"summary": text}, now)
            return await fetch_version(db, "id = ?", (version_id,)), conflicting

    async def _add_version(
        self, db: aiosqlite.Connection, session_id: str, now: int, **columns: Any
    ) -> int:
        version_id = await add_version(db, session_id, now, **columns)
        await prune_versions(db, session_id, self._defaults.summary_versions_kept)
        return version_id

    async def latest_coverage(self, session_id: str) -> Version | None:
        """The version that says what the summary covers; None if it covers nothing."""
        async with self.database.reading() as db:
            version = await _coverage(db, session_id)
        return version if version and version.covered else None

    async def list_versions(
        self, session_id: str, limit: int, offset: int
    ) -> tuple[list[Version], int]:
        """Versions of the summary, newest first, and how many there are."""
        async with self.database.reading() as db:
            count = await db.execute_fetchall(
                "SELECT count(*) FROM summary_versions WHERE session_id = ?", (session_id,)
            )
            rows = await db.execute_fetchall(
                f"SELECT {VERSION_COLUMNS} FROM summary_versions WHERE session_id = ?"
                " ORDER BY id DESC LIMIT ? OFFSET ?",
                (session_id, limit, offset),
            )
        return [version_of_row(row) for row in rows], next(iter(count))[0]

    async def all_versions(self, session_id: str) -> list[Version]:
        """Every version of the summary, oldest first."""
        async with self.database.reading() as db:
            rows = await db.execute_fetchall(
                f"SELECT {VERSION_COLUMNS} FROM summary_versions WHERE session_id = ? ORDER BY id",
                (session_id,),
            )
        return [version_of_row(row) for row in rows]

    async def restore_version(
        self, session_id: str, version_id: int, revision: str, now: int
    ) -> Session:
        """Makes an older version the summary again, as a new version of the user.

        The new version covers what the older one did.

        Raises:
            UnknownSession: There is no such session.
            InvalidChange: The session has no such version.
            StaleRevision: The session was changed since; carries the current row.
        """
        async with self.database.writing() as db:
            current = await required_session(db, session_id)
            version = await fetch_version(db, "id = ? AND session_id = ?", (version_id, session_id))
            if version is None:
                raise InvalidChange("version_id", "没有这个版本 / this session has no such version")
            if revision != current.revision:
                raise StaleRevision(current)
            if version.text == current.summary:
                return current
            source = version if version.prefix_hash else await _coverage(db, session_id, version)
            await change_session(db, current, {"summary": version.text}, now)
            await self._add_version(
                db,
                session_id,
                now,
                source="user",
                text=version.text,
                model=source.model if source else "",
                conversation_id=source.conversation_id if source else None,
                covered=source.covered if source else 0,
                prefix_hash=source.prefix_hash if source else prefix_hash([]),
                tokens=version.tokens,
            )
            return await required_session(db, session_id)

    # Windows

    async def get_window(self, conversation_id: str) -> WindowMark | None:
        """The remembered window of a conversation, or None."""
        async with self.database.reading() as db:
            rows = await db.execute_fetchall(
                "SELECT message_index, content_hash, settings_key, media_index, squeezed"
                " FROM windows WHERE conversation_id = ?",
                (conversation_id,),
            )
        for *values, squeezed in rows:
            return WindowMark(*values, squeezed=tuple(map(tuple, json.loads(squeezed))))
        return None

    async def set_window(self, conversation_id: str, session_id: str, mark: WindowMark) -> None:
        """Remembers the window of a conversation."""
        async with self.database.writing() as db:
            await db.execute(
                "INSERT OR REPLACE INTO windows (conversation_id, session_id, message_index,"
                " content_hash, settings_key, media_index, squeezed) VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    conversation_id,
                    session_id,
                    mark.message_index,
                    mark.content_hash,
                    mark.settings_key,
                    mark.media_index,
                    json.dumps(mark.squeezed),
                ),
            )

    async def options_in_use(self, options: Set[str]) -> set[str]:
        """Those of some options that are on in a session, or for new ones."""
        async with self.database.reading() as db:
            used = {name for name, on in (await self.default_values(db)).items() if on is True}
            for name in options - used:
                rows = await db.execute_fetchall(
                    f"SELECT 1 FROM sessions WHERE {name} <> 0 LIMIT 1"
                )
                used.update([name] if list(rows) else [])
        return used & options

    async def default_values(self, db: aiosqlite.Connection) -> dict[str, Any]:
        """The values of a new session, inside a transaction."""
        rows = await db.execute_fetchall("SELECT name, value FROM defaults")
        kept = {name: bool(value) if name in FLAGS else value for name, value in rows}
        return {column: getattr(self._defaults, column) for column in SHARED} | kept


async def _coverage(
    db: aiosqlite.Connection, session_id: str, at: Version | None = None
) -> Version | None:
    """The newest version, not newer than ``at``, that says what is covered.

    A person's edit says nothing: it refines a text that covers what it did before.
    """
    condition = "session_id = ? AND conflicting = 0 AND prefix_hash <> ''"
    if at is None:
        return await fetch_version(db, condition, (session_id,))
    return await fetch_version(db, f"{condition} AND id <= ?", (session_id, at.id))
