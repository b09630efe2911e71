"""Which finished turns of a conversation are sent.

Pure. Invariants:

* The window is a contiguous run of whole turns that ends at the newest.
* While everything fits, its first turn stays where it is; a cut goes down to the
  low mark at once.
* No message is changed: what is sent of a turn is a lighter copy.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .message_text import (
    Draft,
    clean_text,
    field,
    light_turn,
    media_placeholder,
    part_text,
    parts_of,
    shorten,
    starts_turn,
    text_of,
)

# The longest text a squeezed turn may keep, in characters, tried in this order.
_SQUEEZE_STEPS = (16000, 8000, 4000, 2000, 1000, 500, 240)


@dataclass(frozen=True, slots=True)
class Cost:
    """Size of messages: the plugin's estimate and the host's own, in tokens."""

    tokens: int = 0
    host_tokens: int = 0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.tokens + other.tokens, self.host_tokens + other.host_tokens)

    def within(self, room: "Cost") -> bool:
        return self.tokens <= room.tokens and self.host_tokens <= room.host_tokens


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request may use.

    Attributes:
        budget: Tokens for everything that is sent and the reply.
        host_limit: Host-estimated tokens above which the host would cut by
            itself; None if it never does.
        keep_ratio: Share of the window's room that a cut keeps (0.3–1.0).
        keep_media_turns: Finished turns whose images and audio are still sent.
    """

    budget: int
    host_limit: int | None = None
    keep_ratio: float = 0.7
    keep_media_turns: int = 3

    @property
    def key(self) -> str:
        """Changes whenever a remembered window has to be chosen anew."""
        return f"{self.budget}:{self.keep_ratio:g}:{self.host_limit}"

    @property
    def reply_reserve(self) -> int:
        """Tokens kept free for the reply and for what the estimate misses."""
        return min(1024, self.budget // 10)


@dataclass(frozen=True, slots=True)
class WindowMark:
    """The first turn of a conversation's window, as remembered.

    Attributes:
        message_index: Position of the turn's user message in the history.
        content_hash: Hash of that message, to notice edits.
        settings_key: ``Limits.key`` under which it was chosen.
    """

    message_index: int
    content_hash: str
    settings_key: str


def split_turns(history: Sequence[Any]) -> list[tuple[int, int]]:
    """Turns as ``(start, end)`` positions; the first also holds what precedes it."""
    starts = [i for i, message in enumerate(history) if starts_turn(message)]
    if not starts:
        return []
    return list(zip([0, *starts[1:]], [*starts[1:], len(history)], strict=True))


def _hash(messages: Sequence[Any]) -> str:
    opening = next((m for m in messages if starts_turn(m)), None)
    text = text_of(field(opening, "content"), media=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Window:
    """The finished turns of one conversation with their lightened sizes."""

    def __init__(
        self,
        history: Sequence[Any],
        limits: Limits,
        measure: Callable[[Any], Cost],
        make_message: Callable[[Draft], Any],
    ) -> None:
        self.history = history
        self.turns = split_turns(history)
        self.limits = limits
        self._measure = measure
        self._make = make_message
        self._light: dict[int, tuple[list[Any], Cost]] = {}

    def messages(self, turn: int) -> list[Any]:
        return self._lightened(turn)[0]

    def _lightened(self, turn: int) -> tuple[list[Any], Cost]:
        if turn not in self._light:
            start, end = self.turns[turn]
            keep_media = len(self.turns) - turn <= self.limits.keep_media_turns
            drafts = light_turn(self.history[start:end], keep_media=keep_media)
            self._light[turn] = self._made(drafts)
        return self._light[turn]

    def _made(self, drafts: list[Any]) -> tuple[list[Any], Cost]:
        made = [self._make(m) if isinstance(m, Draft) else m for m in drafts]
        return made, sum((self._measure(m) for m in made), Cost())

    def reach(self, room: Cost, stop_at: int = 0) -> int:
        """The oldest turn, not before ``stop_at``, down to which all turns fit."""
        used, first = Cost(), len(self.turns)
        while first > stop_at:
            used += self._lightened(first - 1)[1]
            if not used.within(room):
                break
            first -= 1
        return first

    def remembered(self, mark: WindowMark | None) -> int:
        """The turn a mark points to; 0 if there is none or it is not found."""
        if mark is None or mark.settings_key != self.limits.key:
            return 0
        for turn, (start, end) in enumerate(self.turns):
            if start == mark.message_index:
                found = _hash(self.history[start:end]) == mark.content_hash
                return turn if found else 0
        return 0

    def choose(self, room: Cost, mark: WindowMark | None) -> int:
        """The first turn to send; ``len(turns)`` if none fits whole."""
        ratio = self.limits.keep_ratio
        start = self.remembered(mark) if ratio < 1 else 0
        reached = self.reach(room, start)
        if reached == start:
            return start
        low = Cost(int(room.tokens * ratio), int(room.host_tokens * ratio))
        first = self.reach(low)
        newest = len(self.turns) - 1
        # A newest turn above the low mark is still better sent than dropped.
        return newest if first > newest and reached <= newest else first

    def squeeze_newest(self, room: Cost) -> list[Any]:
        """The newest turn with its longest texts cut in the middle, or nothing."""
        if not self.turns:
            return []
        start, end = self.turns[-1]
        drafts = light_turn(self.history[start:end], keep_media=False)
        for limit in _SQUEEZE_STEPS:
            made, cost = self._made([_squeezed(m, limit) for m in drafts])
            if cost.within(room):
                return made
        return []

    def start_of(self, turn: int) -> int:
        """Messages before a turn."""
        if turn == 0:
            return 0
        return self.turns[turn][0] if turn < len(self.turns) else len(self.history)

    def mark(self, first: int) -> WindowMark | None:
        if first >= len(self.turns):
            return None
        start, end = self.turns[first]
        return WindowMark(start, _hash(self.history[start:end]), self.limits.key)


def _squeezed(message: Any, limit: int) -> Any:
    head, tail = limit * 2 // 3, limit // 3
    texts = [
        shorten(clean_text(part_text(part) or media_placeholder(part) or ""), head, tail)
        for part in parts_of(field(message, "content"))
    ]
    return Draft(field(message, "role"), "\n".join(text for text in texts if text))
