"""The rows of sessions and summary versions, and the steps of a transaction on them.

Every function here runs inside a transaction that its caller has begun, and
replaces lone surrogates in whatever text it writes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import aiosqlite

from .errors import NO_SESSION, UnknownSession
from .message_text import clean_text
from .options import FLAGS, SHARED

EDITABLE = ("fixed_memory", "summary", "compress_prompt", *SHARED)


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
    window_keep_ratio: float
    keep_first_turns: int
    tail_tokens: int
    auto_compress: bool
    auto_compress_min_messages: int
    auto_compress_threshold: float
    auto_compress_notice: bool
    topic_idle_messages: int
    topic_idle_hours: int
    archive_enabled: bool
    search_tool_enabled: bool
    memory_enabled: bool


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


SESSION_COLUMNS = ", ".join(Session.__slots__)
VERSION_COLUMNS = ", ".join(Version.__slots__)


def kind_of(session_id: str) -> str:
    """``group``, ``private``, ``webchat`` or ``other``, from the host's id."""
    platform, _, rest = session_id.partition(":")
    if platform == "webchat":
        return "webchat"
    message_type = rest.partition(":")[0]
    return {"GroupMessage": "group", "FriendMessage": "private"}.get(message_type, "other")


def session_of_row(row: Iterable[Any]) -> Session:
    """A session from its columns."""
    values = dict(zip(Session.__slots__, row, strict=True))
    flags = {name: bool(values[name]) for name in FLAGS}
    return Session(**values | flags | {"revision": str(values["revision"])})


def version_of_row(row: Iterable[Any]) -> Version:
    """A version from its columns."""
    values = dict(zip(Version.__slots__, row, strict=True))
    return Version(**values | {"conflicting": bool(values["conflicting"])})


async def fetch_session(db: aiosqlite.Connection, session_id: str) -> Session | None:
    """A session, or None."""
    rows = await db.execute_fetchall(
        f"SELECT {SESSION_COLUMNS} FROM sessions WHERE session_id = ?", (session_id,)
    )
    return next((session_of_row(row) for row in rows), None)


async def required_session(db: aiosqlite.Connection, session_id: str) -> Session:
    """A session that must be there."""
    session = await fetch_session(db, session_id)
    if session is None:
        raise UnknownSession(f"{NO_SESSION}: {session_id}")
    return session


async def change_session(
    db: aiosqlite.Connection, current: Session, changes: Mapping[str, Any], now: int
) -> dict[str, Any]:
    """Writes what differs and returns it; only then revision and time move."""
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
    return changed


async def add_version(db: aiosqlite.Connection, session_id: str, now: int, **columns: Any) -> int:
    """Adds a version; returns its id."""
    columns["text"] = clean_text(columns["text"])
    names = ", ".join(columns)
    places = ", ".join("?" * len(columns))
    cursor = await db.execute(
        f"INSERT INTO summary_versions (session_id, created_at, {names}) VALUES (?, ?, {places})",
        (session_id, now, *columns.values()),
    )
    return cursor.lastrowid


async def fetch_version(
    db: aiosqlite.Connection, condition: str, values: Iterable[Any]
) -> Version | None:
    """The newest version that meets a condition, or None."""
    rows = await db.execute_fetchall(
        f"SELECT {VERSION_COLUMNS} FROM summary_versions WHERE {condition}"
        " ORDER BY id DESC LIMIT 1",
        tuple(values),
    )
    return next((version_of_row(row) for row in rows), None)


async def prune_versions(db: aiosqlite.Connection, session_id: str, kept: int) -> None:
    """Removes the oldest versions of a session beyond the newest ``kept``.

    The version of the current summary, the one that says what it covers and the newest
    conflicting one stay.
    """
    await db.execute(
        "DELETE FROM summary_versions WHERE session_id = :session AND id <= (SELECT id"
        " FROM summary_versions WHERE session_id = :session ORDER BY id DESC"
        " LIMIT 1 OFFSET :kept) AND id NOT IN (SELECT coalesce(max(id), 0)"
        " FROM summary_versions WHERE session_id = :session AND conflicting = 0"
        " UNION SELECT coalesce(max(id), 0) FROM summary_versions"
        " WHERE session_id = :session AND conflicting = 0 AND prefix_hash <> ''"
        " UNION SELECT coalesce(max(id), 0) FROM summary_versions"
        " WHERE session_id = :session AND conflicting = 1)",
        {"session": session_id, "kept": kept},
    )
