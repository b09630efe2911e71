"""The commands ``/历史会话`` and ``/恢复会话 N``: what they answer.

A number means what the session was last shown under it, also if newer conversations
have come since.
"""

import time
from typing import Any

from .archive_reader import ArchivedConversation
from .errors import UnknownConversation
from .history import History
from .message_text import beginning
from .texts import Texts

SHOWN = 10
_TITLE_LENGTH = 30
# Sessions whose last list is remembered.
_REMEMBERED = 200


class ConversationCommands:
    """Answers for one plugin instance."""

    def __init__(self, history: History, texts: Texts) -> None:
        self._history = history
        self._texts = texts
        self._shown: dict[str, list[ArchivedConversation]] = {}

    async def show(self, event: Any) -> str:
        """The newest conversations of the event's session."""
        session_id = event.unified_msg_origin
        found = await self._history.conversations(session_id)
        if not found:
            return self._texts.get("no_conversations")
        self._remember(session_id, found)
        current = await self._history.current(session_id)
        lines = [self._line(i, c, current) for i, c in enumerate(found[:SHOWN], start=1)]
        head = self._texts.get("conversations_head", total=len(found))
        return "\n".join([head, *lines, self._texts.get("conversations_foot")])

    def _remember(self, session_id: str, found: list[ArchivedConversation]) -> None:
        self._shown.pop(session_id, None)
        self._shown[session_id] = found
        while len(self._shown) > _REMEMBERED:
            del self._shown[next(iter(self._shown))]

    def _line(self, number: int, conversation: ArchivedConversation, current: str | None) -> str:
        in_host = "conversation_in_host" if conversation.in_host else "conversation_archived"
        place = "conversation_current" if conversation.conversation_id == current else in_host
        return self._texts.get(
            "conversation_line",
            number=number,
            time=time.strftime("%Y-%m-%d %H:%M", time.localtime(conversation.last_at)),
            messages=conversation.messages,
            place=self._texts.get(place),
            title=_title(conversation),
        )

    async def resume(self, event: Any) -> str:
        """Makes the conversation of a number the session's current one."""
        words = event.message_str.split()
        if len(words) != 2 or not words[1].isdecimal() or len(words[1]) > 9:
            return self._texts.get("resume_usage")
        session_id, number = event.unified_msg_origin, int(words[1])
        found = self._shown.get(session_id) or await self._history.conversations(session_id)
        if not 1 <= number <= len(found):
            return self._texts.get("resume_unknown", number=number, total=len(found))
        conversation = found[number - 1]
        try:
            await self._history.resume(session_id, conversation.conversation_id, True)
        except UnknownConversation:
            return self._texts.get("resume_failed")
        return self._texts.get(
            "resumed", title=_title(conversation), messages=conversation.messages
        )


def _title(conversation: ArchivedConversation) -> str:
    return beginning(" ".join(conversation.title.split()), _TITLE_LENGTH)
