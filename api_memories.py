"""The page's calls about long-term memories."""

from dataclasses import asdict
from typing import Any

from .api_models import MemoriesQuery, MemoryBody, MemoryDeleteBody
from .api_sessions import required_session
from .errors import NO_DATABASE, InvalidChange, MemoryRefused, StorageUnavailable
from .memories import LongTermMemory
from .memory import entry_of
from .memory_store import Memory
from .texts import both


class MemoryApi:
    """The handlers; ``plugin`` offers storage and memory."""

    def __init__(self, plugin: Any) -> None:
        self._plugin = plugin

    @property
    def _memory(self) -> LongTermMemory:
        if self._plugin.memory is None:
            raise StorageUnavailable(NO_DATABASE)
        return self._plugin.memory

    async def memories(self, query: MemoriesQuery) -> dict[str, Any]:
        session = await required_session(self._plugin, query.session_id)
        found, total = await self._memory.find(
            session.session_id, query.q, query.limit, query.offset
        )
        return {"items": [_item(memory) for memory in found], "total": total}

    async def save(self, body: MemoryBody) -> dict[str, Any]:
        session = await required_session(self._plugin, body.session_id)
        try:
            return _item(await self._saved(session, body))
        except MemoryRefused as refusal:
            raise InvalidChange("text", both(refusal.reason_key, **refusal.params)) from refusal

    async def _saved(self, session: Any, body: MemoryBody) -> Memory:
        if body.id is None:
            memory = await self._memory.save(session, entry_of(body.text, body.tags), "user")
            if not body.reviewed:
                return memory
            body = body.model_copy(update={"id": memory.id})
        current = await self._memory.store.get(session.session_id, body.id)
        if current is None:
            raise InvalidChange("id", "没有这条记忆 / this session has no such memory")
        tags = list(current.tags) if body.tags is None else body.tags
        entry = entry_of(body.text, tags, current.about)
        return await self._memory.edit(session, body.id, entry, body.reviewed)

    async def delete(self, body: MemoryDeleteBody) -> dict[str, Any]:
        session = await required_session(self._plugin, body.session_id)
        if body.all == bool(body.ids):
            raise InvalidChange("ids", "give either ids or all")
        if body.all:
            return {"deleted": await self._memory.store.clear(session.session_id)}
        return {"deleted": len(await self._memory.store.delete(session.session_id, body.ids))}


def _item(memory: Memory) -> dict[str, Any]:
    item = asdict(memory)
    del item["session_id"]
    return item | {"tags": list(memory.tags)}
