"""The page's calls about the archive: conversations, messages, export, deletion."""

import time
from dataclasses import asdict
from typing import Any

from .api_models import HistoryExportQuery, HistoryQuery, ResumeBody, SessionQuery
from .api_sessions import required_session, storage_of
from .api_transfer import download
from .archive_export import json_chunks, markdown_chunks
from .archive_reader import ArchiveReader, Entry, Scope
from .errors import STARTING, StorageUnavailable, UnknownConversation
from .history import History, chain
from .message_text import shorten
from .search import search

# What the page shows of one long message, in characters.
TEXT_HEAD, TEXT_TAIL = 16_000, 4_000


class HistoryApi:
    """The handlers; ``plugin`` offers storage, history and archivist."""

    def __init__(self, plugin: Any) -> None:
        self._plugin = plugin

    @property
    def _history(self) -> History:
        if self._plugin.history is None:
            raise StorageUnavailable(STARTING)
        return self._plugin.history

    @property
    def _reader(self) -> ArchiveReader:
        return self._history.reader

    async def conversations(self, query: SessionQuery) -> dict[str, Any]:
        session = await required_session(self._plugin, query.session_id)
        found = await self._history.conversations(session.session_id)
        current = await self._history.current(session.session_id)
        return {"items": chain(found, current), "archive_enabled": session.archive_enabled}

    async def resume(self, body: ResumeBody) -> dict[str, Any]:
        await required_session(self._plugin, body.session_id)
        made = await self._history.resume(body.session_id, body.conversation_id, body.make_current)
        return {"conversation_id": made}

    async def history(self, query: HistoryQuery) -> dict[str, Any]:
        if query.session_id:
            await required_session(self._plugin, query.session_id)
        scope = Scope(
            query.session_id or None, query.conversation_id, query.role, query.since, query.until
        )
        if query.q.strip():
            return await self._search(query, scope)
        entries, total, offset = await self._reader.messages(
            scope, query.limit, query.offset, query.around
        )
        return {"items": [_item(entry) for entry in entries], "total": total, "offset": offset}

    async def _search(self, query: HistoryQuery, scope: Scope) -> dict[str, Any]:
        """Best hits first; each names the title of its conversation."""
        database = storage_of(self._plugin).database
        found = await search(database, query.q, scope, limit=query.limit, offset=query.offset)
        items = [
            asdict(hit) | {"text": shorten(hit.text, TEXT_HEAD, TEXT_TAIL)} for hit in found.items
        ]
        return {"items": items, "total": found.total, "offset": query.offset}

    async def delete(self, body: SessionQuery) -> dict[str, Any]:
        await required_session(self._plugin, body.session_id)
        return {"deleted": await self._plugin.archivist.delete(body.session_id)}

    async def export(self, query: HistoryExportQuery) -> Any:
        if query.session_id:
            await required_session(self._plugin, query.session_id)
        storage_of(self._plugin)
        found = await self._reader.conversations(query.session_id)
        if query.conversation_id:
            found = [c for c in found if c.conversation_id == query.conversation_id]
            if not found:
                raise UnknownConversation("没有这个对话 / unknown conversation")
        make = json_chunks if query.format == "json" else markdown_chunks
        return await download(make(self._reader, found, int(time.time())), query.format, "history")


def _item(entry: Entry) -> dict[str, Any]:
    return asdict(entry) | {"text": shorten(entry.text, TEXT_HEAD, TEXT_TAIL), "snippet": ""}
