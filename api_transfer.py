"""The page's calls for export and import."""

import asyncio
import os
import tempfile
import time
from collections.abc import AsyncIterator
from typing import Any

from astrbot.api.web import file_response, request
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException

from .api_models import ExportQuery, ImportQuery, Nothing
from .api_sessions import refresh_tools, required_session, storage_of
from .errors import InvalidChange
from .importing import import_sessions
from .memory_store import MemoryStore
from .storage import Session
from .transfer import JSON_TAIL, json_head, json_session, markdown_session, parse

# The largest file that is read; larger ones would be held in memory several times.
MAX_FILE_BYTES = 256 * 1024 * 1024
_CONTENT_TYPES = {
    "json": ("json", "application/json"),
    "markdown": ("md", "text/markdown; charset=utf-8"),
}


class TransferApi:
    """The handlers; ``plugin`` offers storage and host."""

    def __init__(self, plugin: Any) -> None:
        self._plugin = plugin

    async def export(self, query: ExportQuery) -> Any:
        if query.session_id:
            ids = [(await required_session(self._plugin, query.session_id)).session_id]
        else:
            ids = await storage_of(self._plugin).session_ids()
        return await download(self._chunks(ids, query.format), query.format, "context-manager")

    async def _chunks(self, ids: list[str], file_format: str) -> AsyncIterator[str]:
        as_json = file_format == "json"
        if as_json:
            yield json_head(int(time.time()))
        first = True
        for session_id in ids:
            session = await storage_of(self._plugin).get_session(session_id)
            if session is None:
                continue
            if not first:
                yield ",\n" if as_json else "\n---\n\n"
            first = False
            yield await self._session(session, as_json)
        if as_json:
            yield JSON_TAIL

    async def _session(self, session: Session, as_json: bool) -> str:
        conversation_id, history = await self._plugin.host.load_history(session.session_id)
        memories = await MemoryStore(storage_of(self._plugin).database).all(session.session_id)
        if not as_json:
            return await asyncio.to_thread(markdown_session, session, history, memories)
        versions = await storage_of(self._plugin).all_versions(session.session_id)
        return await asyncio.to_thread(
            json_session, session, versions, conversation_id, history, memories
        )

    async def import_file(self, query: ImportQuery) -> dict[str, Any]:
        entries = await asyncio.to_thread(parse, await _uploaded())
        changes = await import_sessions(
            storage_of(self._plugin),
            entries,
            apply=not query.dry_run,
            now=int(time.time()),
            max_memories=self._plugin.settings.memory_max_entries,
        )
        if not query.dry_run:
            await refresh_tools(self._plugin)
        return {"changes": changes, "applied": not query.dry_run}

    async def preview_import(self, query: Nothing) -> dict[str, Any]:
        """A dry run by its path: the page's bridge uploads without a query."""
        return await self.import_file(ImportQuery(dry_run=True))


async def download(chunks: AsyncIterator[str], file_format: str, name: str) -> Any:
    """Answers with a file made of pieces of text.

    Args:
        chunks: The pieces.
        file_format: ``json`` or ``markdown``.
        name: How the file's name begins.
    """
    # A file of its own: an error half-way is an error, not half an export.
    handle, path = tempfile.mkstemp(prefix="context-manager-", suffix=".export")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as output:
            async for chunk in chunks:
                await asyncio.to_thread(output.write, chunk)
    except BaseException:
        os.unlink(path)
        raise
    extension, content_type = _CONTENT_TYPES[file_format]
    stamp = time.strftime("%Y%m%d-%H%M%S")
    answer = file_response(path, filename=f"{name}-{stamp}.{extension}", content_type=content_type)
    answer.background = BackgroundTask(os.unlink, path)
    return answer


async def _uploaded() -> bytes:
    try:
        files = await request.files()
    except HTTPException as error:
        raise InvalidChange("file", "无法读取上传的文件 / the upload cannot be read") from error
    upload = files.get("file")
    if upload is None:
        raise InvalidChange("file", "没有文件 / missing")
    content = await upload.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        limit = f"{MAX_FILE_BYTES // 1024 // 1024} MB"
        raise InvalidChange("file", f"大于 {limit} / larger than {limit}")
    return content
