"""The tools by which a model keeps memories, and what they answer.

Every answer says what happened and, if nothing did, what to do instead. Arguments come
from a model and may be anything.
"""

import json
import re
from typing import Any

from .errors import MemoryRefused
from .memories import LongTermMemory
from .memory import Known, entry_of
from .memory_recall import line_of
from .memory_store import Memory
from .message_text import beginning
from .storage import Session
from .texts import Texts
from .tool_shelf import Tool

# Where an event keeps the memories that its model has been shown.
SHOWN_KEY = "_context_manager_memories_shown"
OPTION = "memory_enabled"

_FOUND = 10
_FORGET_AT_ONCE = 10
_EXCERPT = 200


def shown_memories(event: Any) -> list[Known]:
    """The memories that the model of an event has been shown."""
    shown = event.get_extra(SHOWN_KEY)
    return list(shown) if isinstance(shown, list) else []


def note_shown(event: Any, memories: list[Memory]) -> None:
    """Notes what the model of an event is shown."""
    event.set_extra(SHOWN_KEY, [*shown_memories(event), *(m.known for m in memories)])


class MemoryTools:
    """The three tools."""

    def __init__(self, memory: LongTermMemory, texts: Texts) -> None:
        self._memory = memory
        self._texts = texts

    def tools(self) -> list[Tool]:
        """The tools, described and answering in one language."""
        text = {"type": "string", "description": self._texts.get("tool_memory_text")}
        tags = {
            "type": "array",
            "items": {"type": "string"},
            "description": self._texts.get("tool_memory_tags"),
        }
        about = {"type": "string", "description": self._texts.get("tool_memory_about")}
        query = {"type": "string", "description": self._texts.get("tool_memory_query")}
        ids = {
            "type": "array",
            "items": {"type": "integer"},
            "description": self._texts.get("tool_memory_ids"),
        }
        forget_text = {"type": "string", "description": self._texts.get("tool_memory_forget_text")}
        return [
            self._tool("memory_save", {"text": text, "tags": tags, "about": about}, "text"),
            self._tool("memory_search", {"query": query}),
            self._tool("memory_forget", {"ids": ids, "text": forget_text}),
        ]

    def _tool(self, name: str, properties: dict[str, Any], *required: str) -> Tool:
        run = {
            "memory_save": self.save,
            "memory_search": self.search,
            "memory_forget": self.forget,
        }[name]
        return Tool(name, OPTION, self._texts.get(f"tool_{name}"), properties, required, run)

    async def save(self, session: Session, event: Any, arguments: dict[str, Any]) -> str:
        """Remembers a text for the session."""
        about = arguments.get("about")
        if session.kind != "group":
            about = ""
        elif not isinstance(about, str) or not about.strip():
            about = str(event.get_sender_name() or event.get_sender_id() or "")
        try:
            entry = entry_of(arguments.get("text"), arguments.get("tags"), about)
            shown = shown_memories(event)
            memory = await self._memory.save(session, entry, "model", shown)
        except MemoryRefused as refusal:
            return self._texts.get(refusal.reason_key, **_quoted(refusal.params))
        note_shown(event, [memory])
        return self._texts.get("memory_saved", id=memory.id)

    async def search(self, session: Session, event: Any, arguments: dict[str, Any]) -> str:
        """Finds memories of the session."""
        query = arguments.get("query")
        query = query if isinstance(query, str) else ""
        found = await self._memory.look_up(session.session_id, query, _FOUND)
        note_shown(event, found)
        return self._listed("memory_found", found) if found else self._texts.get("memory_none")

    async def forget(self, session: Session, event: Any, arguments: dict[str, Any]) -> str:
        """Forgets memories of the session by id, or the one that says a text."""
        ids = ids_of(arguments.get("ids"))
        if not ids:
            text = arguments.get("text")
            return await self._forget_text(session, event, text if isinstance(text, str) else "")
        deleted = await self._memory.store.delete(session.session_id, ids[:_FORGET_AT_ONCE])
        if not deleted:
            return self._texts.get("memory_unknown", ids=", ".join(map(str, ids)))
        return self._listed("memory_forgotten", deleted)

    async def _forget_text(self, session: Session, event: Any, text: str) -> str:
        if not text.strip():
            return self._texts.get("memory_forget_what")
        named = await self._memory.named(session.session_id, text)
        if len(named) == 1:
            deleted = await self._memory.store.delete(session.session_id, [named[0].id])
            return self._listed("memory_forgotten", deleted)
        close = named or await self._memory.look_up(session.session_id, text, _FOUND)
        if not close:
            return self._texts.get("memory_none")
        note_shown(event, close)
        return self._listed("memory_which", close)

    def _listed(self, key: str, memories: list[Memory]) -> str:
        return "\n".join([self._texts.get(key, count=len(memories)), *map(line_of, memories)])


def ids_of(given: Any) -> list[int]:
    """The ids a model may have meant: numbers, texts with numbers, or lists of them."""
    if isinstance(given, list | tuple):
        return list(dict.fromkeys(i for one in given[:100] for i in ids_of(one)))
    if isinstance(given, bool) or not isinstance(given, int | float | str):
        return []
    if isinstance(given, str):
        return [int(number) for number in re.findall(r"\d{1,15}", given)[:100]]
    return [int(given)] if given == given and 0 < given < 2**53 and given == int(given) else []


def _quoted(params: dict[str, Any]) -> dict[str, Any]:
    text = params.get("text")
    if isinstance(text, str):
        params = params | {"text": json.dumps(beginning(text, _EXCERPT), ensure_ascii=False)}
    return params
