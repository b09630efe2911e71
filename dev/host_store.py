"""A host's stored conversations, read and written beside the host.

Invariants:
- One connection per call, so that no lock is held while a host works.
- Conversations are only ever seeded for sessions, never merged with what is there.
"""

import json
import sqlite3
import uuid
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path


@dataclass(frozen=True)
class StoredConversation:
    """One row of the host's table of conversations."""

    conversation_id: str
    session_id: str
    messages: list[dict]
    raw: str
    token_usage: int


class HostStore:
    """The conversations in one host's database.

    Args:
        path: ``data/data_v4.db`` of the host.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=20, isolation_level=None)
        connection.execute("PRAGMA busy_timeout=20000")
        return connection

    def seed(
        self,
        session_id: str,
        messages: list[dict],
        token_usage: int = 0,
        persona_id: str | None = None,
    ) -> str:
        """Gives a session a current conversation; returns the conversation's id."""
        conversation_id = str(uuid.uuid4())
        now = datetime.now(UTC).replace(tzinfo=None).isoformat(" ")
        row = (
            conversation_id,
            session_id.split(":")[0],
            session_id,
            json.dumps(messages, ensure_ascii=True),
            persona_id,
            token_usage,
            now,
            now,
        )
        with closing(self._connect()) as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(
                "INSERT INTO conversations (conversation_id, platform_id, user_id, "
                "content, persona_id, token_usage, created_at, updated_at) "
                "VALUES (?,?,?,?,?,?,?,?)",
                row,
            )
            self._select(connection, session_id, conversation_id, now)
            connection.execute("COMMIT")
        return conversation_id

    @staticmethod
    def _select(
        connection: sqlite3.Connection, session_id: str, conversation_id: str, now: str
    ) -> None:
        value = json.dumps({"val": conversation_id})
        connection.execute(
            "INSERT INTO preferences (scope, scope_id, key, value, created_at, "
            "updated_at) VALUES ('umo', ?, 'sel_conv_id', ?, ?, ?) "
            "ON CONFLICT (scope, scope_id, key) DO UPDATE SET value=excluded.value",
            (session_id, value, now, now),
        )

    def conversation(self, conversation_id: str) -> StoredConversation | None:
        """Returns one conversation, or None if the host has it no more."""
        found = self._query("conversation_id = ?", conversation_id)
        return found[0] if found else None

    def conversations(self, session_id: str) -> list[StoredConversation]:
        """Returns all conversations of a session, oldest first."""
        return self._query("user_id = ?", session_id)

    def _query(self, condition: str, value: str) -> list[StoredConversation]:
        query = (
            "SELECT conversation_id, user_id, content, token_usage FROM conversations "
            f"WHERE {condition} ORDER BY inner_conversation_id"
        )
        with closing(self._connect()) as connection:
            rows = connection.execute(query, (value,)).fetchall()
        return [
            StoredConversation(row[0], row[1], json.loads(row[2] or "[]"), row[2], row[3])
            for row in rows
        ]

    def overwrite(self, conversation_id: str, messages: list[dict], usage: int) -> None:
        """Replaces the content of a conversation, as a user's edit in the WebUI does."""
        with closing(self._connect()) as connection:
            connection.execute(
                "UPDATE conversations SET content=?, token_usage=? WHERE conversation_id=?",
                (json.dumps(messages), usage, conversation_id),
            )
