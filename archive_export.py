"""The archive as a file: JSON to keep everything, Markdown to read."""

import json
import re
import time
from collections.abc import AsyncIterator
from dataclasses import asdict

from .archive_reader import ArchivedConversation, ArchiveReader
from .message_text import clean_text

FORMAT = "astrbot_plugin_context_manager.history"
FORMAT_VERSION = 1


async def json_chunks(
    reader: ArchiveReader, conversations: list[ArchivedConversation], now: int
) -> AsyncIterator[str]:
    """The conversations with every message as it was stored, in pieces."""
    head = {"format": FORMAT, "version": FORMAT_VERSION, "exported_at": now}
    yield json.dumps(head)[:-1] + ', "conversations": ['
    for number, conversation in enumerate(conversations):
        yield ",\n" if number else "\n"
        yield json.dumps(asdict(conversation))[:-1] + ', "history": ['
        first = True
        async for entry, message in reader.whole(conversation.conversation_id):
            names = ("seq", "time", "sender", "in_host")
            row = {name: getattr(entry, name) for name in names} | {"message": message}
            yield ("" if first else ",\n") + json.dumps(row)
            first = False
        yield "]}"
    yield "\n]}\n"


async def markdown_chunks(
    reader: ArchiveReader, conversations: list[ArchivedConversation], now: int
) -> AsyncIterator[str]:
    """The conversations as a document for people, in pieces."""
    for number, conversation in enumerate(conversations):
        title = re.sub(r"\s+", " ", conversation.title).strip() or conversation.conversation_id
        yield ("\n---\n\n" if number else "") + f"# {clean_text(title)}\n\n"
        yield f"`{clean_text(conversation.session_id)}` · {_moment(conversation.first_at)}\n"
        async for entry, _ in reader.whole(conversation.conversation_id):
            gone = "" if entry.in_host else " · 已不在 AstrBot 的对话里 / no longer in AstrBot"
            who = " ".join(filter(None, [entry.role, entry.sender]))
            yield f"\n**[{entry.seq + 1}] {who}** · {_moment(entry.time)}{gone}\n\n"
            yield clean_text(entry.text) + "\n"


def _moment(seconds: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds)) if seconds else "?"
