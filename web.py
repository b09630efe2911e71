"""The border between the page and the plugin: input, routes, errors to statuses.

Every route passes it: a switched-off plugin or a missing database is a 503, input
that does not fit its model is a 400 that names the field, an unknown session a
404, a stale revision a 409 with the current row. Whatever else goes wrong is
logged once and answered with 500. Nothing is changed on any error.
"""

import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from astrbot.api.web import error_response, json_response, request
from pydantic import BaseModel, ValidationError

from .api_history import HistoryApi
from .api_memories import MemoryApi
from .api_models import (
    ApplyBody,
    CompressBody,
    ExportQuery,
    HistoryExportQuery,
    HistoryQuery,
    ImportQuery,
    ListQuery,
    MemoriesQuery,
    MemoryBody,
    MemoryDeleteBody,
    Nothing,
    PreviewQuery,
    RequestsQuery,
    RestoreBody,
    ResumeBody,
    SaveBody,
    SessionQuery,
    TopicBody,
    VersionsQuery,
)
from .api_requests import RequestApi
from .api_sessions import SessionApi
from .api_transfer import TransferApi
from .errors import (
    ContextManagerError,
    InvalidChange,
    StaleRevision,
    UnknownConversation,
    UnknownSession,
)
from .message_text import clean_text

logger = logging.getLogger("astrbot")

PLUGIN_NAME = "astrbot_plugin_context_manager"
# Above every valid body, also one whose texts are all written as escapes.
MAX_BODY = 10_000_000


def _cleaned(value: Any) -> Any:
    """Replaces lone surrogates everywhere in a JSON value."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, list):
        return [_cleaned(item) for item in value]
    if isinstance(value, dict):
        return {_cleaned(key): _cleaned(item) for key, item in value.items()}
    return value


async def _input(model: type[BaseModel], from_query: bool) -> BaseModel:
    if from_query:
        # The dashboard adds its login's parameters for downloads; ours are named.
        raw: Any = dict(request.query.items())
    else:
        if int(request.headers.get("content-length") or 0) > MAX_BODY:
            raise InvalidChange("body", f"超过 {MAX_BODY} 字节 / larger than {MAX_BODY} bytes")
        try:
            raw = json.loads(await request.body() or b"{}")
        except (ValueError, RecursionError) as error:
            raise InvalidChange("body", "not valid JSON") from error
        if not isinstance(raw, dict):
            raise InvalidChange("body", "must be a JSON object")
    try:
        return model.model_validate(_cleaned(raw))
    except RecursionError as error:
        raise InvalidChange("body", "nested too deeply") from error


def _bad_input(error: ValidationError) -> Any:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    field = ".".join(str(part) for part in first["loc"]) or "body"
    return error_response(f"{field}: {first['msg']}", status_code=400, data={"field": field})


def _route(
    plugin: Any, api: SessionApi, method: str, handler: Callable[[Any], Awaitable[Any]], model: type
) -> Callable[[], Awaitable[Any]]:
    # An upload's body is its file.
    from_query = method == "GET" or model in (ImportQuery, Nothing)

    async def answer() -> Any:
        if plugin.closed:
            return error_response("插件已停用。 / The plugin is switched off.", status_code=503)
        session_id = ""
        try:
            given = await _input(model, from_query)
            session_id = getattr(given, "session_id", "")
            return await _handled(api, handler, given)
        except ValidationError as error:
            return _bad_input(error)
        except InvalidChange as error:
            return error_response(str(error), status_code=400, data={"field": error.field})
        except (UnknownSession, UnknownConversation) as error:
            return error_response(str(error), status_code=404)
        except ContextManagerError as error:
            return error_response(str(error), status_code=503)
        except Exception:
            logger.exception("[context_manager] page call failed, session %r", session_id)
            text = "出错了，请看 AstrBot 的日志。 / Unexpected error; see AstrBot's log."
            return error_response(text, status_code=500)

    return answer


async def _handled(api: SessionApi, handler: Callable[[Any], Awaitable[Any]], given: Any) -> Any:
    try:
        result = await handler(given)
    except StaleRevision as error:
        row = await api.row(error.current)
        return error_response(str(error), status_code=409, data=row)
    return json_response(result) if isinstance(result, dict) else result


def register_routes(context: Any, plugin: Any) -> None:
    """Registers every route of the page; the host never unregisters one."""
    api, requests, transfer = SessionApi(plugin), RequestApi(plugin), TransferApi(plugin)
    history = HistoryApi(plugin)
    memories = MemoryApi(plugin)
    routes: list[tuple[str, str, Callable[[Any], Awaitable[Any]], type]] = [
        ("sessions", "GET", api.sessions, ListQuery),
        ("session", "GET", api.session, SessionQuery),
        ("session", "POST", api.save, SaveBody),
        ("sessions/apply", "POST", api.apply, ApplyBody),
        ("session/versions", "GET", api.versions, VersionsQuery),
        ("session/restore", "POST", api.restore, RestoreBody),
        ("session/compress", "GET", api.job, SessionQuery),
        ("session/compress", "POST", api.compress, CompressBody),
        ("session/compress/cancel", "POST", api.cancel, SessionQuery),
        ("session/prompt", "GET", api.prompt, SessionQuery),
        ("session/requests", "GET", requests.requests, RequestsQuery),
        ("session/preview", "GET", requests.preview, PreviewQuery),
        ("session/topic", "POST", requests.topic, TopicBody),
        ("memories", "GET", memories.memories, MemoriesQuery),
        ("memories", "POST", memories.save, MemoryBody),
        ("memories/delete", "POST", memories.delete, MemoryDeleteBody),
        ("export", "GET", transfer.export, ExportQuery),
        ("import", "POST", transfer.import_file, ImportQuery),
        ("import/preview", "POST", transfer.preview_import, Nothing),
        ("conversations", "GET", history.conversations, SessionQuery),
        ("conversations/resume", "POST", history.resume, ResumeBody),
        ("history", "GET", history.history, HistoryQuery),
        ("history/delete", "POST", history.delete, SessionQuery),
        ("history/export", "GET", history.export, HistoryExportQuery),
        ("health", "GET", api.health, Nothing),
    ]
    for path, method, handler, model in routes:
        route = _route(plugin, api, method, handler, model)
        # The host keys routes by path and method and replaces those of a reload.
        context.register_web_api(f"/{PLUGIN_NAME}/{path}", route, [method], f"{method} {path}")
