"""Memories on the current message of a request.

Invariants:

* What stands before the current message is built without them: it is the same, byte by
  byte, with and without a recall. They take what is left of the budget, and nothing from
  the window.
* Whatever goes wrong here, the request goes out without memories.
"""

import logging
from collections.abc import Callable
from typing import Any

from .context_logic import Cost, Limits
from .host import Host
from .memories import LongTermMemory
from .memory_tools import OPTION, note_shown
from .message_text import Draft, field, spoken_text, text_of
from .projection import Projection
from .settings import Settings
from .storage import Session
from .temporary_part import TemporaryPart

logger = logging.getLogger("astrbot")


class Recaller:
    """Adds to requests what their sessions remember."""

    def __init__(self, memory: LongTermMemory, host: Host, settings: Settings) -> None:
        self._memory = memory
        self._host = host
        self._settings = settings

    async def recall(
        self,
        event: Any,
        session: Session | None,
        projection: Projection,
        limits: Limits,
        measure: Callable[[Any], Cost],
    ) -> TemporaryPart | None:
        """Prepares what the current message is to carry; nothing is changed yet.

        Args:
            event: The host's event; it notes what its model is shown.
            session: The session as stored, if it is known.
            projection: The request as built; its report gets the memories' size.
            limits: What the request may use.
            measure: Size of a message.
        """
        current = projection.current
        if session is None or current is None or not getattr(session, OPTION):
            return None
        try:
            return await self._prepared(event, session, projection, limits, measure)
        except Exception:
            # The border to the request: it is complete without memories.
            logger.exception("[context_manager] %s: nothing recalled", session.session_id)
            return None

    async def _prepared(
        self,
        event: Any,
        session: Session,
        projection: Projection,
        limits: Limits,
        measure: Callable[[Any], Cost],
    ) -> TemporaryPart | None:
        room, host_room = self._room(projection, limits, measure)

        def size(text: str) -> Cost:
            return measure(self._host.make_message(Draft("user", text)))

        def fits(text: str) -> bool:
            cost = size(text)
            return cost.tokens <= room and (host_room is None or cost.host_tokens <= host_room)

        visible = [text_of(field(message, "content")) for message in projection.messages]
        question = spoken_text(projection.current)
        recall = await self._memory.recall(session, question, visible, fits)
        if recall is None:
            return None
        projection.report.sections["recalled"] = size(recall.text).tokens
        note_shown(event, recall.memories)
        self._memory.note_recalled(session.session_id, recall.memories)
        part = self._host.temporary_part(recall.text)
        return TemporaryPart.beside(projection.current, part, self._host.text_part)

    def _room(
        self, projection: Projection, limits: Limits, measure: Callable[[Any], Cost]
    ) -> tuple[int, int | None]:
        """Tokens that memories may need, by the plugin's and by the host's estimate."""
        left = limits.room - projection.report.estimated
        room = min(left, self._settings.memory_recall_tokens)
        if limits.host_limit is None:
            return room, None
        used = sum(measure(m).host_tokens for m in projection.messages)
        return room, limits.host_limit - used
