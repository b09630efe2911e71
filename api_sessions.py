"""The page's calls about sessions: list, save, versions, compression, health.

Thin: input arrives validated, errors leave as the plugin's own.
"""

import asyncio
import time
from dataclasses import asdict
from typing import Any

from pydantic import BaseModel

from .api_models import (
    ApplyBody,
    CompressBody,
    ListQuery,
    Nothing,
    RestoreBody,
    SaveBody,
    SessionQuery,
    VersionsQuery,
)
from .calibration_store import ModelKey
from .compression import Compressor
from .errors import (
    NO_DATABASE,
    NO_SESSION,
    STARTING,
    CompressionRefused,
    InvalidChange,
    StorageUnavailable,
    UnknownSession,
)
from .message_text import shorten
from .options import OPTIONS
from .storage import Session, Storage, Version, kind_of
from .summary_text import default_template
from .texts import both
from .watermark import without_checkpoints

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

# What the page shows of a prompt that holds a long history, in characters.
PROMPT_HEAD, PROMPT_TAIL = 60_000, 20_000


def storage_of(plugin: Any) -> Storage:
    """The plugin's storage, which may be missing."""
    if plugin.storage is None:
        raise StorageUnavailable(NO_DATABASE)
    return plugin.storage


async def required_session(plugin: Any, session_id: str) -> Session:
    """A session that must be there."""
    session = await storage_of(plugin).get_session(session_id)
    if session is None:
        raise UnknownSession(f"{NO_SESSION}: {session_id}")
    return session


async def refresh_tools(plugin: Any) -> None:
    """Options may have changed: the host offers the tools that are on somewhere."""
    if plugin.shelf is not None:
        await plugin.shelf.refresh()


class SessionApi:
    """The handlers; ``plugin`` offers storage, flow, compressor, host, tokens and closed."""

    def __init__(self, plugin: Any) -> None:
        self._plugin = plugin

    @property
    def _storage(self) -> Storage:
        return storage_of(self._plugin)

    @property
    def _compressor(self) -> Compressor:
        if self._plugin.compressor is None:
            raise StorageUnavailable(STARTING)
        return self._plugin.compressor

    async def _required(self, session_id: str) -> Session:
        return await required_session(self._plugin, session_id)

    async def sessions(self, query: ListQuery) -> dict[str, Any]:
        rows, total = await self._storage.list_sessions(
            query.q, query.kind, query.platform, query.limit, query.offset
        )
        return {
            "items": await asyncio.to_thread(lambda: [self._item(s) for s in rows]),
            "total": total,
            "platforms": await self._storage.platforms(),
        }

    def _item(self, session: Session) -> dict[str, Any]:
        names = ("session_id", "display_name", "platform", "kind", "last_seen_at", "updated_at")
        count = self._plugin.tokens.count_text
        return {name: getattr(session, name) for name in names} | {
            "fixed_memory_tokens": count(session.fixed_memory),
            "summary_tokens": count(session.summary),
        }

    async def session(self, query: SessionQuery) -> dict[str, Any]:
        return await self.row(await self._required(query.session_id))

    async def row(self, session: Session) -> dict[str, Any]:
        """A session as every route answers it."""
        return {name: getattr(session, name) for name in ROW} | {
            "revision": session.revision,
            "kind": session.kind,
            "options": {name: getattr(session, name) for name in OPTIONS},
            "coverage": await self._coverage(session.session_id),
        }

    async def _coverage(self, session_id: str) -> dict[str, Any]:
        """How much of the current conversation the summary covers."""
        version = await self._storage.latest_coverage(session_id)
        conversation_id, history = await self._plugin.host.load_history(session_id)
        messages = without_checkpoints(history)
        state = self._plugin.flow.conversations
        covered = await state.covered(session_id, conversation_id, messages)
        return {
            "conversation_id": conversation_id,
            "messages": covered,
            "total": len(messages),
            "out_of_date": version is not None and not covered,
            "model": version.model if version else None,
            "created_at": version.created_at if version else None,
        }

    async def save(self, body: SaveBody) -> dict[str, Any]:
        changes = _given(body.changes, "changes")
        session = await self._storage.update_session(
            body.session_id, changes, body.revision, int(time.time())
        )
        await refresh_tools(self._plugin)
        return await self.row(session)

    async def apply(self, body: ApplyBody) -> dict[str, Any]:
        changes = _given(body.changes, "changes")
        updated = await self._storage.apply_to_all(changes, int(time.time()))
        await refresh_tools(self._plugin)
        return {"updated": updated}

    async def versions(self, query: VersionsQuery) -> dict[str, Any]:
        await self._required(query.session_id)
        rows, total = await self._storage.list_versions(query.session_id, query.limit, query.offset)
        items = await asyncio.to_thread(lambda: [self._version(version) for version in rows])
        return {"items": items, "total": total}

    def _version(self, version: Version) -> dict[str, Any]:
        names = ("id", "created_at", "source", "model", "covered", "text", "conflicting")
        return {name: getattr(version, name) for name in names} | {
            "tokens": version.tokens or self._plugin.tokens.count_text(version.text)
        }

    async def restore(self, body: RestoreBody) -> dict[str, Any]:
        session = await self._storage.restore_version(
            body.session_id, body.version_id, body.revision, int(time.time())
        )
        return await self.row(session)

    async def compress(self, body: CompressBody) -> dict[str, Any]:
        await self._known_to_host(body.session_id)
        job = self._compressor.start(body.session_id, body.focus, body.rebuild)
        await job.prepared()
        return job.as_dict()

    async def _known_to_host(self, session_id: str) -> None:
        """A session with a history may be compressed before its first request."""
        if await self._storage.get_session(session_id) is not None:
            return
        if not await self._plugin.host.session_exists(session_id):
            raise UnknownSession(f"{NO_SESSION}: {session_id}")
        platform = session_id.partition(":")[0] if kind_of(session_id) != "other" else ""
        await self._storage.ensure_session(session_id, platform, int(time.time()))

    async def job(self, query: SessionQuery) -> dict[str, Any]:
        session = await self._required(query.session_id)
        compressor = self._compressor
        pause = await compressor.log.pause(session.session_id)
        return compressor.job(session.session_id).as_dict() | {
            "costs": asdict(await compressor.log.costs(session.session_id)),
            "pause": asdict(pause) if pause else None,
        }

    async def cancel(self, body: SessionQuery) -> dict[str, Any]:
        await self._required(body.session_id)
        return (await self._compressor.cancel(body.session_id)).as_dict()

    async def prompt(self, query: SessionQuery) -> dict[str, Any]:
        session = await self._required(query.session_id)
        prompt, problem = "", ""
        try:
            prompt = await self._compressor.next_prompt(session)
        except CompressionRefused as refusal:
            problem = both(refusal.reason_key, **refusal.params)
        return {
            "prompt": shorten(prompt, PROMPT_HEAD, PROMPT_TAIL),
            "template": session.compress_prompt or default_template(),
            "default": not session.compress_prompt,
            "message": problem,
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
        if plugin.flow is not None:
            warnings += map(_limit_warning, plugin.flow.estimates.learned_limits())
        problem = plugin.storage.problem if plugin.storage else "not available"
        return {
            "version": plugin.version,
            "host_version": plugin.host.version,
            "database": problem or "ok",
            "warnings": warnings,
            "counters": dict(plugin.flow.counters) if plugin.flow else {},
        }


def _limit_warning(learned: tuple[ModelKey, int]) -> dict[str, str]:
    key, limit = learned
    text = (
        f"模型 {key.model} 拒绝过更长的上下文，现在按 ≈{limit} tokens 以内发送，每天放宽一些。"
        f" / Model {key.model} refused a longer context; requests stay within ≈{limit} tokens,"
        " a little more every day."
    )
    return {"code": "learned_limit", "message": text}


def _given(changes: BaseModel, field: str) -> dict[str, Any]:
    """The values a caller gave; null and nothing at all are refused."""
    given = {name: getattr(changes, name) for name in changes.model_fields_set}
    for name, value in given.items():
        if value is None:
            raise InvalidChange(f"{field}.{name}", "must not be null")
    if not given:
        raise InvalidChange(field, "nothing to change")
    return given
