"""The archive and the journal as they lie in the plugin's database, read beside it."""

import json
import sqlite3
from collections import Counter
from contextlib import closing

from dev.host_process import HostProcess

from .sessions import DATABASE


def rows(host: HostProcess, query: str, *values: object) -> list[dict]:
    """Rows of the plugin's database."""
    path = host.plugin_data / DATABASE
    with closing(sqlite3.connect(path, timeout=20)) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute(query, values)]


def archived(host: HostProcess, origin: str) -> dict[str, list[dict]]:
    """All archived messages of a session by conversation, in their order."""
    found: dict[str, list[dict]] = {}
    query = "SELECT * FROM archived_messages WHERE session_id = ? ORDER BY seq, id"
    for row in rows(host, query, origin):
        found.setdefault(row["conversation_id"], []).append(row)
    return found


def held(archive: dict[str, list[dict]], conversation_id: str) -> list[dict]:
    """What the archive says the host holds of a conversation."""
    found = archive.get(conversation_id, [])
    return [json.loads(row["content"]) for row in found if row["in_host"]]


def without_checkpoints(messages: list[dict]) -> list[dict]:
    """What of a stored conversation is archived."""
    return [message for message in messages if message.get("role") != "_checkpoint"]


def catch_up(host: HostProcess, origin: str) -> list[dict]:
    """Has the archive catch up with the host; returns the chain of conversations."""
    status, answer = host.web.api("GET", "conversations", session_id=origin)
    assert status == 200, answer
    return answer["items"]


def counted(messages: list[dict]) -> Counter:
    """Messages to compare whatever their order."""
    return Counter(json.dumps(message, sort_keys=True) for message in messages)


def assert_archive_agrees(host: HostProcess, origin: str) -> None:
    """The archive holds of every conversation exactly what the host holds."""
    catch_up(host, origin)
    archive = archived(host, origin)
    stored = {c.conversation_id: c.messages for c in host.store.conversations(origin)}
    for conversation_id, messages in stored.items():
        assert held(archive, conversation_id) == without_checkpoints(messages), conversation_id
    chain = {c["conversation_id"]: c for c in catch_up(host, origin)}
    for conversation_id in archive:
        assert chain[conversation_id]["in_host"] == (conversation_id in stored)
