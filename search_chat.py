"""Search as a chat and its model use it: the command ``/搜索历史`` and a tool.

Invariants:

* What is searched is the session of the event, and nothing that a person or a model
  writes changes that.
* Arguments of a model may be anything; each gets an answer.
"""

import time
from collections.abc import Sequence
from typing import Any

from .database import Database
from .message_text import clean_text
from .search import Hit, Scope, search
from .search_snippet import HIT_END, HIT_START
from .storage import Session
from .texts import Texts
from .tool_shelf import Tool

TOOL_NAME = "search_history"

# Hits that a command and a model are told, at most.
_SHOWN, _FOR_MODEL, _MOST_FOR_MODEL = 8, 8, 20
# Hits that are looked at: a model's own searches among them are passed over.
_LOOKED_AT = 60
_QUERY_SHOWN = 60
_MODEL_TEXT = 400
_MARKS = str.maketrans({HIT_START: "【", HIT_END: "】"})


class ChatSearch:
    """Answers for one plugin instance."""

    def __init__(self, database: Database, texts: Texts) -> None:
        self._database = database
        self._texts = texts

    async def command(self, session_id: str, query: str) -> str:
        """The answer to ``/搜索历史 query``.

        Raises:
            StorageUnavailable: The archive cannot be searched now.
        """
        query = clean_text(query).strip()
        if not query:
            return self._texts.get("search_usage")
        found = await search(self._database, query, Scope(session_id), limit=_SHOWN)
        lines = [self._line(number, hit, hit.snippet) for number, hit in enumerate(found.items, 1)]
        return self._answer(query, found.total, lines)

    def tools(self) -> list[Tool]:
        """The tool, described and answering in one language."""
        properties = {
            "query": {"type": "string", "description": self._texts.get("tool_search_query")},
            "limit": {"type": "integer", "description": self._texts.get("tool_search_limit")},
        }

        async def run(session: Session, _: Any, arguments: dict[str, Any]) -> str:
            return await self.tool(session.session_id, arguments)

        description = self._texts.get("tool_search_history")
        return [Tool(TOOL_NAME, "search_tool_enabled", description, properties, ("query",), run)]

    async def tool(self, session_id: str, arguments: dict[str, Any]) -> str:
        """The answer to a model's call.

        Args:
            session_id: Of the event that the model answers.
            arguments: ``query`` and ``limit`` as the model gave them; others are ignored.

        Raises:
            StorageUnavailable: The archive cannot be searched now.
        """
        query = arguments.get("query")
        query = clean_text(query).strip() if isinstance(query, str) else ""
        if not query:
            return self._texts.get("search_usage")
        found = await search(self._database, query, Scope(session_id), limit=_LOOKED_AT)
        said = [hit for hit in found.items if not _is_own_search(hit)]
        shown = said[: _limit(arguments.get("limit"))]
        lines = [
            self._line(number, hit, _text_for_model(hit)) for number, hit in enumerate(shown, 1)
        ]
        return self._answer(query, found.total - len(found.items) + len(said), lines)

    def _answer(self, query: str, total: int, lines: Sequence[str]) -> str:
        shown = query if len(query) <= _QUERY_SHOWN else query[:_QUERY_SHOWN] + "…"
        if not lines:
            return self._texts.get("search_none", query=shown)
        head = self._texts.get("search_head", query=shown, total=total, shown=len(lines))
        return "\n".join([head, *lines])

    def _line(self, number: int, hit: Hit, text: str) -> str:
        return self._texts.get(
            "search_line",
            number=number,
            time=time.strftime("%Y-%m-%d %H:%M", time.localtime(hit.time)),
            who=hit.sender or self._role(hit.role),
            text=text.translate(_MARKS),
        )

    def _role(self, role: str) -> str:
        known = role in ("user", "assistant", "tool", "system")
        return self._texts.get(f"role_{role}") if known else role


def _is_own_search(hit: Hit) -> bool:
    """Whether a hit only repeats an earlier search of a model."""
    asked = hit.role == "assistant" and hit.text.startswith(f"[工具调用 {TOOL_NAME}]")
    return asked or (hit.role == "tool" and hit.sender == TOOL_NAME)


def _text_for_model(hit: Hit) -> str:
    text = " ".join(hit.text.split())
    return text if len(text) <= _MODEL_TEXT else hit.snippet


def _limit(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        return _FOR_MODEL
    return int(max(1, min(value, _MOST_FOR_MODEL)))
