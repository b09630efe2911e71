"""Conversations to archive, and the archive as it lies in the database."""

import json
import sqlite3

from astrbot_plugin_context_manager.archive import HostConversation

GROUP = "qq:GroupMessage:100"


def conversation(key="c1", session_id=GROUP, title="", updated_at=200.5):
    return HostConversation(key, session_id, title, 100.0, updated_at)


def said(*texts, start=0):
    roles = ("user", "assistant")
    return [{"role": roles[(start + i) % 2], "content": t} for i, t in enumerate(texts)]


def rows(database, condition="1"):
    with sqlite3.connect(database.path) as db:
        db.row_factory = sqlite3.Row
        query = f"SELECT * FROM archived_messages WHERE {condition} ORDER BY conversation_id, seq"
        return [dict(row) for row in db.execute(query)]


def held(database, key="c1"):
    """What the archive says the host holds."""
    found = rows(database, f"conversation_id = '{key}' AND in_host = 1")
    return [json.loads(row["content"]) for row in found]


def texts(database, condition="1"):
    return [row["text"] for row in rows(database, condition)]


# A chat whose words come again.
OLD = said("你好", "你好！", "讲个故事", "从前…", "谢谢", "不客气")
