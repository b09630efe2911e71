"""The page's API: validated input, typed errors to statuses, thin handlers.

Every route passes one border: a switched-off plugin or a missing database is a
503, input that does not fit its model is a 400 that names the field, an unknown
session a 404, a stale revision a 409 with the current row. Whatever else goes
wrong is logged once and answered with 500. Nothing is changed on any error.
"""

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal

from astrbot.api.web import error_response, json_response, request
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from .errors import (
    ContextManagerError,
    InvalidChange,
    StaleRevision,
    StorageUnavailable,
    UnknownSession,
)
from .message_text import clean_text
from .settings import SummaryTarget, TokenBudget
from .storage import Session, kind_of
from .summary_text import default_template
from .watermark import covers, without_checkpoints

logger = logging.getLogger("astrbot")

PLUGIN_NAME = "astrbot_plugin_context_manager"

SessionId = Annotated[str, Field(min_length=1, max_length=512)]
Text = Annotated[str, Field(max_length=200_000)]
ROW = (
    "session_id",
    "display_name",
    "platform",
    "fixed_memory",
    "summary",
    "compress_prompt",
    "recent_context_token_budget",
    "summary_target_tokens",
    "last_seen_at",
    "updated_at",
)


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ListQuery(_Model):
    """Query of ``GET sessions``."""

    q: Annotated[str, Field(max_length=200)] = ""
    kind: Literal["", "group", "private", "webchat", "other"] = ""
    platform: Annotated[str, Field(max_length=200)] = ""
    limit: Annotated[int, Field(ge=1, le=200)] = 50
    offset: Annotated[int, Field(ge=0, le=10_000_000)] = 0


class SessionQuery(_Model):
    """Query or body that names a session."""

    session_id: SessionId


class Nothing(_Model):
    """Query of a route without parameters."""


class SharedChanges(_Model):
    """Values that may be set for all sessions."""

    recent_context_token_budget: TokenBudget | None = None
    summary_target_tokens: SummaryTarget | None = None


class Changes(SharedChanges):
    """Editable values of one session; absent ones stay."""

    fixed_memory: Text | None = None
    summary: Text | None = None
    compress_prompt: Annotated[str, Field(max_length=20_000)] | None = None


class SaveBody(SessionQuery):
    """Body of ``POST session``."""

    revision: Annotated[str, Field(min_length=1, max_length=64)]
    changes: Changes


class ApplyBody(_Model):
    """Body of ``POST sessions/apply``."""

    changes: SharedChanges


class CompressBody(SessionQuery):
    """Body of ``POST session/compress``."""

    focus: Annotated[str, Field(max_length=2000)] = ""


class Api:
    """The handlers; ``plugin`` offers storage, compressor, host, tokens and closed."""

    def __init__(self, plugin: Any) -> None:
        self._plugin = plugin

    @property
    def _storage(self) -> Any:
        if self._plugin.storage is None:
            raise StorageUnavailable("The plugin's database is not available; see AstrBot's log.")
        return self._plugin.storage

    async def _required(self, session_id: str) -> Session:
        session = await self._storage.get_session(session_id)
        if session is None:
            raise UnknownSession(f"unknown session: {session_id}")
        return session

    async def sessions(self, query: ListQuery) -> dict[str, Any]:
        rows, total = await self._storage.list_sessions(
            query.q, query.kind, query.platform, query.limit, query.offset
        )
        return {"items": [self._item(session) for session in rows], "total": total}

    def _item(self, session: Session) -> dict[str, Any]:
        names = ("session_id", "display_name", "platform", "kind", "last_seen_at", "updated_at")
        count = self._plugin.tokens.count_text
        return {name: getattr(session, name) for name in names} | {
            "fixed_memory_tokens": count(session.fixed_memory),
            "summary_tokens": count(session.summary),
        }

    async def session(self, query: SessionQuery) -> dict[str, Any]:
        return await self._row(await self._required(query.session_id))

    async def _row(self, session: Session) -> dict[str, Any]:
        return {name: getattr(session, name) for name in ROW} | {
            "revision": session.revision,
            "kind": session.kind,
            "options": {},
            "coverage": await self._coverage(session.session_id),
        }

    async def _coverage(self, session_id: str) -> dict[str, Any]:
        """How much of the current conversation the summary covers."""
        version = await self._storage.latest_coverage(session_id)
        conversation_id, history = await self._plugin.host.load_history(session_id)
        covered, out_of_date = 0, False
        if version is not None:
            holds = version.conversation_id == conversation_id and await asyncio.to_thread(
                covers, history, version.covered, version.prefix_hash
            )
            covered, out_of_date = (version.covered, False) if holds else (0, True)
        return {
            "conversation_id": conversation_id,
            "messages": covered,
            "total": len(without_checkpoints(history)),
            "out_of_date": out_of_date,
            "model": version.model if version else None,
            "created_at": version.created_at if version else None,
        }

    async def save(self, body: SaveBody) -> dict[str, Any]:
        changes = _given(body.changes, "changes")
        session = await self._storage.update_session(
            body.session_id, changes, body.revision, int(time.time())
        )
        return await self._row(session)

    async def apply(self, body: ApplyBody) -> dict[str, Any]:
        changes = _given(body.changes, "changes")
        return {"updated": await self._storage.apply_to_all(changes, int(time.time()))}

    async def compress(self, body: CompressBody) -> dict[str, Any]:
        await self._known_to_host(body.session_id)
        return self._plugin.compressor.start(body.session_id, body.focus).as_dict()

    async def _known_to_host(self, session_id: str) -> None:
        """A session with a history may be compressed before its first request."""
        if await self._storage.get_session(session_id) is not None:
            return
        if not await self._plugin.host.session_exists(session_id):
            raise UnknownSession(f"unknown session: {session_id}")
        platform = session_id.partition(":")[0] if kind_of(session_id) != "other" else ""
        await self._storage.see_session(session_id, "", platform, int(time.time()))

    async def job(self, query: SessionQuery) -> dict[str, Any]:
        await self._required(query.session_id)
        return self._plugin.compressor.job(query.session_id).as_dict()

    async def cancel(self, body: SessionQuery) -> dict[str, Any]:
        await self._required(body.session_id)
        return (await self._plugin.compressor.cancel(body.session_id)).as_dict()

    async def prompt(self, query: SessionQuery) -> dict[str, Any]:
        session = await self._required(query.session_id)
        return {
            "prompt": session.compress_prompt or default_template(),
            "default": not session.compress_prompt,
        }

    async def health(self, query: Nothing) -> dict[str, Any]:
        plugin = self._plugin
        warnings = plugin.host.settings_warnings()
        if plugin.tokens.problem:
            warnings.append({"code": "vocabulary", "message": plugin.tokens.problem})
        for name in plugin.setting_problems:
            text = (
                f"设置 {name} 的值无效，已使用默认值。 / Setting {name} is invalid; default used."
            )
            warnings.append({"code": "setting", "message": text})
        problem = plugin.storage.problem if plugin.storage else "not available"
        return {
            "version": plugin.version,
            "host_version": plugin.host.version,
            "database": problem or "ok",
            "warnings": warnings,
            "counters": dict(plugin.flow.counters) if plugin.flow else {},
        }


def _given(changes: BaseModel, field: str) -> dict[str, Any]:
    """The values a caller gave; null and nothing at all are refused."""
    given = {name: getattr(changes, name) for name in changes.model_fields_set}
    for name, value in given.items():
        if value is None:
            raise InvalidChange(f"{field}.{name}", "must not be null")
    if not given:
        raise InvalidChange(field, "nothing to change")
    return given


def _cleaned(value: Any) -> Any:
    """Replaces lone surrogates everywhere in a JSON value."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, list):
        return [_cleaned(item) for item in value]
    if isinstance(value, dict):
        return {_cleaned(key): _cleaned(item) for key, item in value.items()}
    return value


async def _input(model: type[BaseModel], method: str) -> BaseModel:
    if method == "GET":
        # The dashboard adds its login's parameters for downloads; ours are named.
        raw: Any = dict(request.query.items())
    else:
        try:
            raw = json.loads(await request.body() or b"{}")
        except (ValueError, UnicodeDecodeError) as error:
            raise InvalidChange("body", "not valid JSON") from error
        if not isinstance(raw, dict):
            raise InvalidChange("body", "must be a JSON object")
    return model.model_validate(_cleaned(raw))


def _bad_input(error: ValidationError) -> Any:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    field = ".".join(str(part) for part in first["loc"]) or "body"
    return error_response(f"{field}: {first['msg']}", status_code=400, data={"field": field})


def _route(
    api: Api, plugin: Any, method: str, handler: Callable[[Any], Awaitable[Any]], model: type
) -> Callable[[], Awaitable[Any]]:
    async def answer() -> Any:
        if plugin.closed:
            return error_response("The plugin is switched off.", status_code=503)
        session_id = ""
        try:
            given = await _input(model, method)
            session_id = getattr(given, "session_id", "")
            return json_response(await handler(given))
        except ValidationError as error:
            return _bad_input(error)
        except InvalidChange as error:
            return error_response(str(error), status_code=400, data={"field": error.field})
        except UnknownSession as error:
            return error_response(str(error), status_code=404)
        except StaleRevision as error:
            row = await api._row(error.current)
            return error_response(str(error), status_code=409, data=row)
        except ContextManagerError as error:
            return error_response(str(error), status_code=503)
        except Exception:
            logger.exception("[context_manager] page call failed, session %r", session_id)
            return error_response("Unexpected error; see AstrBot's log.", status_code=500)

    return answer


def register_routes(context: Any, plugin: Any) -> None:
    """Registers every route of the page; the host never unregisters one."""
    api = Api(plugin)
    routes: list[tuple[str, str, Callable[[Any], Awaitable[Any]], type]] = [
        ("sessions", "GET", api.sessions, ListQuery),
        ("session", "GET", api.session, SessionQuery),
        ("session", "POST", api.save, SaveBody),
        ("sessions/apply", "POST", api.apply, ApplyBody),
        ("session/compress", "GET", api.job, SessionQuery),
        ("session/compress", "POST", api.compress, CompressBody),
        ("session/compress/cancel", "POST", api.cancel, SessionQuery),
        ("session/prompt", "GET", api.prompt, SessionQuery),
        ("health", "GET", api.health, Nothing),
    ]
    for path, method, handler, model in routes:
        route = _route(api, plugin, method, handler, model)
        # The host keys routes by path and method and replaces those of a reload.
        context.register_web_api(f"/{PLUGIN_NAME}/{path}", route, [method], f"{method} {path}")
