"""Reads the archive: conversations as a chain, messages by pages, whole conversations.

Nothing here writes. A message counts as held by the host if its conversation is and
the message still belongs to it.
"""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from .archive_rows import Original
from .database import Database
from .message_text import media_kind

# Rows read at once of a conversation that is exported or brought back.
_CHUNK = 500


@dataclass(frozen=True, slots=True)
class ArchivedConversation:
    """A conversation in the archive; times in unix seconds.

    Attributes:
        messages: Rows, those that left the host included.
    """

    conversation_id: str
    session_id: str
    title: str
    first_at: int
    last_at: int
    in_host: bool
    messages: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One message as it is shown.

    Attributes:
        in_host: Whether the host still holds it.
    """

    id: int
    session_id: str
    conversation_id: str
    seq: int
    role: str
    sender: str
    time: int
    text: str
    in_host: bool


@dataclass(frozen=True, slots=True)
class Scope:
    """Which messages to read or search.

    Attributes:
        session_id: Of one session; None for all of them.
        conversation_id: Of one conversation; empty for all.
        role: Of one role; empty for all.
        since: Unix seconds, included; None for no limit.
        until: Unix seconds, not included; None for no limit.
    """

    session_id: str | None
    conversation_id: str = ""
    role: str = ""
    since: int | None = None
    until: int | None = None

    @property
    def is_filtered(self) -> bool:
        """Whether it leaves out messages of its sessions."""
        limits = (self.since, self.until)
        return bool(self.conversation_id or self.role) or any(limit is not None for limit in limits)

    def condition(self, table: str = "") -> tuple[str, list[str | int]]:
        """The scope as an SQL condition and its values."""
        limits = [
            ("session_id = ?", self.session_id),
            ("conversation_id = ?", self.conversation_id or None),
            ("role = ?", self.role or None),
            ("time >= ?", self.since),
            ("time < ?", self.until),
        ]
        given = [(table + limit, value) for limit, value in limits if value is not None]
        return " AND ".join(["1", *(limit for limit, _ in given)]), [value for _, value in given]


_ENTRY = (
    "m.id, m.session_id, m.conversation_id, m.seq, m.role, m.sender, m.time, m.text,"
    " m.in_host AND c.in_host"
)
_JOINED = "archived_messages m JOIN archived_conversations c USING (conversation_id)"
_CONVERSATION = (
    "c.conversation_id, c.session_id, c.title, c.first_at, c.last_at, c.in_host,"
    " (SELECT count(*) FROM archived_messages m WHERE m.conversation_id = c.conversation_id)"
)


class ArchiveReader:
    """Reads what the archive holds."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def conversations(self, session_id: str = "") -> list[ArchivedConversation]:
        """The conversations of a session, or of all, newest first."""
        async with self._database.reading() as db:
            rows = await db.execute_fetchall(
                f"SELECT {_CONVERSATION} AS messages FROM archived_conversations c"
                " WHERE (? = '' OR c.session_id = ?) AND messages > 0"
                " ORDER BY c.last_at DESC, c.rowid DESC",
                (session_id, session_id),
            )
        return [ArchivedConversation(*row[:5], bool(row[5]), row[6]) for row in rows]

    async def messages(
        self, scope: Scope, limit: int, offset: int, around: int | None = None
    ) -> tuple[list[Entry], int, int]:
        """A page of messages: of one conversation as they were said, else the newest first.

        Args:
            scope: Which messages.
            limit: Messages a page.
            offset: Messages before the page.
            around: Id of a message of one conversation that the page is to show;
                the offset is then chosen for it.

        Returns:
            The messages, how many there are in all, and the offset.
        """
        condition, values = scope.condition("m.")
        order = "m.seq, m.id" if scope.conversation_id else "m.id DESC"
        async with self._database.reading() as db:
            [(total,)] = await db.execute_fetchall(
                f"SELECT count(*) FROM archived_messages m WHERE {condition}", values
            )
            if around is not None:
                [(before,)] = await db.execute_fetchall(
                    f"SELECT count(*) FROM archived_messages m WHERE {condition} AND (m.seq, m.id)"
                    " < (SELECT seq, id FROM archived_messages WHERE id = ?)",
                    [*values, around],
                )
                offset = max(0, min(before - limit // 2, total - limit))
            rows = await db.execute_fetchall(
                f"SELECT {_ENTRY} FROM {_JOINED} WHERE {condition}"
                f" ORDER BY {order} LIMIT ? OFFSET ?",
                [*values, limit, offset],
            )
        return [Entry(*row[:8], bool(row[8])) for row in rows], total, offset

    async def whole(self, conversation_id: str) -> AsyncIterator[tuple[Entry, dict[str, Any]]]:
        """Every message of a conversation in order, with what was stored of it."""
        last = (-1, -1)
        while True:
            async with self._database.reading() as db:
                rows = list(
                    await db.execute_fetchall(
                        f"SELECT {_ENTRY}, m.content FROM {_JOINED} WHERE m.conversation_id = ?"
                        " AND (m.seq, m.id) > (?, ?) ORDER BY m.seq, m.id LIMIT ?",
                        (conversation_id, *last, _CHUNK),
                    )
                )
            for row in rows:
                yield Entry(*row[:8], bool(row[8])), json.loads(row[9])
            if len(rows) < _CHUNK:
                return
            last = rows[-1][3], rows[-1][0]

    async def last_state(
        self, session_id: str, conversation_id: str
    ) -> tuple[list[dict[str, Any]], list[Original]]:
        """The messages of a conversation as it was last, ready to be stored again.

        Media that are not in the archive are texts that name them.

        Returns:
            The messages, and the row of each.
        """
        async with self._database.reading() as db:
            rows = await db.execute_fetchall(
                "SELECT content, id, role, sender, time, text FROM archived_messages"
                " WHERE session_id = ?"
                " AND conversation_id = ? AND in_host = 1 ORDER BY seq, id",
                (session_id, conversation_id),
            )
        messages = [_storable(json.loads(row[0])) for row in rows]
        return messages, [Original(*row[1:]) for row in rows]


def _storable(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    if isinstance(content, list):
        message["content"] = [_shown_part(part) for part in content]
    return message


def _shown_part(part: Any) -> Any:
    """A part as it is, or as text if its media were not kept."""
    if media_kind(part) is None or not isinstance(part, dict):
        return part
    for value in part.values():
        found = value.get("url") or value.get("data") if isinstance(value, dict) else None
        if isinstance(found, str) and found.startswith("["):
            return {"type": "text", "text": found}
    return part
