"""Which finished turns of a conversation are sent, and how.

Pure. Invariants:

* The window is a contiguous run of whole turns that ends at the newest; only the
  turns that ``keep_first_turns`` pins may stand before it.
* While everything fits, its first turn stays where it is; a cut goes down to the
  low mark at once.
* A message that was sent in a lighter form is never sent whole again: the place
  before which media are placeholders only moves forward. They go at once: a picture
  that waits for the next cut takes more from the window than the cache would keep.
* A turn that was squeezed to fit is sent in the same bytes while the mark holds, or
  squeezed further while it is the newest; room that comes back changes nothing.
* No message is changed: what is sent of a turn is a lighter copy.
"""

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from .limits import Cost, Limits, TopicMark, WindowMark
from .message_text import (
    Draft,
    clean_text,
    field,
    has_content,
    light_turn,
    media_bytes,
    media_placeholder,
    part_text,
    parts_of,
    shorten,
    starts_turn,
    text_of,
)

# The longest text a squeezed turn may keep, in characters, tried in this order.
_SQUEEZE_STEPS = (16000, 8000, 4000, 2000, 1000, 500, 240)


def split_turns(history: Sequence[Any]) -> list[tuple[int, int]]:
    """Turns as ``(start, end)`` positions; the first also holds what precedes it."""
    # Every message of a long history passes here with every request: read directly.
    try:
        starts = [
            i
            for i, m in enumerate(history)
            if m.role == "user"
            and (
                not text.isspace()
                if type(text := m.content) is str and text
                else _says_something(m)
            )
        ]
    except AttributeError:
        starts = [i for i, message in enumerate(history) if starts_turn(message)]
    if not starts:
        return []
    return list(zip([0, *starts[1:]], [*starts[1:], len(history)], strict=True))


def _says_something(message: Any) -> bool:
    """``has_content`` of the host's messages in parts, of which most begin with a text."""
    content = message.content
    text = content[0].__dict__.get("text") if content else ""
    return bool(text and not text.isspace()) or has_content(message)


def turn_hash(turn: Sequence[Any]) -> str:
    """Hash of the user message that opens a turn."""
    opening = next((m for m in turn if starts_turn(m)), None)
    text = text_of(field(opening, "content"), media=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def topic_mark(history: Sequence[Any]) -> TopicMark | None:
    """The mark of a topic that begins behind a history; None if that is empty."""
    turns = split_turns(history)
    if not turns:
        return None
    start, end = turns[-1]
    return TopicMark(end, turn_hash(history[start:end]))


@dataclass(frozen=True, slots=True)
class Choice:
    """What is sent of a conversation.

    Attributes:
        pinned: First turns that stay whatever the window does.
        first: First turn of the run that ends at the newest; as many as there are
            turns if none fits whole.
        room: What the run may use.
    """

    pinned: int
    first: int
    room: Cost


class Window:
    """The finished turns of one conversation with their lightened sizes.

    Args:
        history: The messages before the current one.
        limits: What may be used.
        measure: Size of one message.
        make_message: Turns a ``Draft`` into a message of the host.
        mark: The window as remembered.
        covered: Leading messages that the summary covers.
        topic: Where a new topic began.
        running_media: Bytes of media in the current message and after it.
    """

    def __init__(
        self,
        history: Sequence[Any],
        limits: Limits,
        measure: Callable[[Any], Cost],
        make_message: Callable[[Draft], Any],
        *,
        mark: WindowMark | None = None,
        covered: int = 0,
        topic: TopicMark | None = None,
        running_media: int = 0,
    ) -> None:
        self.history = history
        self.turns = split_turns(history)
        self.limits = limits
        self._measure = measure
        self._make = make_message
        self._starts = [start for start, _ in self.turns]
        self._light: dict[int, tuple[list[Any], Cost]] = {}
        self._covered = covered if limits.tail_tokens else 0
        self._topic = self._turn_of_topic(topic)
        self.key = f"{limits.key}:{self._covered}:{self._topic}"
        found = self._turn_of(mark)
        self.remembered = found if mark and mark.settings_key == self.key else None
        self._squeezed = self._squeezed_turns(mark) if self.remembered is not None else {}
        self._media_from = self._first_media(mark if found is not None else None, running_media)

    # Turns

    def __len__(self) -> int:
        return len(self.turns)

    def of_turn(self, turn: int) -> Sequence[Any]:
        start, end = self.turns[turn]
        return self.history[start:end]

    def messages(self, turn: int) -> list[Any]:
        """What is sent of a turn."""
        return self._lightened(turn)[0]

    def tokens(self, turn: int) -> int:
        """Size of what is sent of a turn."""
        return self._lightened(turn)[1].tokens

    def start_of(self, turn: int) -> int:
        """Messages before a turn."""
        return self._starts[turn] if turn < len(self) else len(self.history)

    def _lightened(self, turn: int) -> tuple[list[Any], Cost]:
        if turn not in self._light:
            if turn in self._squeezed:
                self._light[turn] = self._shortened(turn, self._squeezed[turn])
            else:
                drafts = light_turn(self.of_turn(turn), keep_media=turn >= self._media_from)
                self._light[turn] = self._made(drafts)
        return self._light[turn]

    def _shortened(self, turn: int, limit: int) -> tuple[list[Any], Cost]:
        """A turn without media, with texts of at most about ``limit`` characters."""
        drafts = light_turn(self.of_turn(turn), keep_media=False)
        return self._made([_squeezed(message, limit) for message in drafts])

    def _made(self, drafts: list[Any]) -> tuple[list[Any], Cost]:
        made = [self._make(m) if isinstance(m, Draft) else m for m in drafts]
        # Of every turn of a long window: sums of two numbers, not of objects.
        tokens = host_tokens = 0
        for cost in map(self._measure, made):
            tokens += cost.tokens
            host_tokens += cost.host_tokens
        return made, Cost(tokens, host_tokens)

    def _turn_of(self, mark: WindowMark | None) -> int | None:
        """The turn a mark points to; None if there is none or it was edited."""
        if mark is None:
            return None
        turn = self._turn_at(mark.message_index)
        if turn is None or turn_hash(self.of_turn(turn)) != mark.content_hash:
            return None
        return turn

    def _turn_at(self, position: int) -> int | None:
        """The turn that starts exactly at a position of the history."""
        turn = bisect_left(self._starts, position)
        return turn if self._starts[turn : turn + 1] == [position] else None

    def _squeezed_turns(self, mark: WindowMark) -> dict[int, int]:
        """The longest text of each turn that was squeezed, by turn."""
        found = ((self._turn_at(position), limit) for position, limit in mark.squeezed)
        return {turn: limit for turn, limit in found if turn is not None}

    def _turn_of_topic(self, topic: TopicMark | None) -> int:
        """The first turn of the topic; 0 if there is none or what preceded it is gone."""
        if topic is None:
            return 0
        turn = bisect_left(self._starts, topic.message_index, lo=min(1, len(self)))
        if turn == 0 or self.start_of(turn) != topic.message_index:
            return 0
        return turn if turn_hash(self.of_turn(turn - 1)) == topic.content_hash else 0

    def _first_media(self, mark: WindowMark | None, running_media: int) -> int:
        """The first turn whose media are sent."""
        first = max(0, len(self) - self.limits.keep_media_turns)
        if mark is not None:
            first = max(first, bisect_left(self._starts, mark.media_index))
        sizes = [sum(map(media_bytes, self.of_turn(t))) for t in range(first, len(self))]
        limit = self.limits.keep_media_bytes
        if sum(sizes) + running_media <= limit:
            return first
        # Far below the limit at once: the next picture must not move it again.
        while sizes and sum(sizes) + running_media > limit // 2:
            first += 1
            del sizes[0]
        return first

    # The window

    def choose(self, room: Cost) -> Choice:
        """What is sent, if the finished turns may use ``room``."""
        pinned, room = self._pinned(room)
        start = max(self._start(), pinned)
        first = reached = self._reach(room, start)
        if reached > start:
            first = self._reach(room.scaled(self.limits.keep_ratio), start)
            newest = len(self) - 1
            # A newest turn above the low mark is still better sent than dropped.
            first = newest if first > newest >= reached else first
        return Choice(pinned, first, room)

    def _start(self) -> int:
        """Where the window begins while everything fits."""
        if self.remembered is None:
            return self.floor
        # The tail moves on with every turn; what it left behind stays until the next cut.
        refill = self.limits.keep_ratio == 1
        return min(self.floor, self.remembered) if refill else self.remembered

    @cached_property
    def floor(self) -> int:
        """The first turn that topic and summary leave in the window."""
        return max(self._topic, self._covered_floor())

    @property
    def floor_reason(self) -> str:
        """Why turns are left out whatever the budget: ``topic``, ``summary`` or nothing."""
        if not self.floor:
            return ""
        return "topic" if self._topic == self.floor else "summary"

    def _covered_floor(self) -> int:
        """Covered turns before the tail leave; the newest turn stays."""
        if not self._covered:
            return 0
        # A turn that is covered in part is not covered.
        uncovered = bisect_left([end for _, end in self.turns], self._covered + 1)
        return min(uncovered, self.tail, max(0, len(self) - 1))

    @cached_property
    def tail(self) -> int:
        """The first of the newest turns that together stay within ``tail_tokens``."""
        # A tail above the budget would only be cut again.
        room = min(self.limits.tail_tokens, self.limits.usable)
        return self._reach(Cost(room, 1 << 60), 0) if room else len(self)

    def _pinned(self, room: Cost) -> tuple[int, Cost]:
        """How many first turns are pinned, and the room behind them.

        Together they may take a third of the budget, or of what model or host allow,
        so that recent turns fit too.
        """
        used, count = Cost(), 0
        third = Cost(self.limits.usable // 3, (self.limits.host_limit or 1 << 60) // 3)
        while count < min(self.limits.keep_first_turns, len(self)):
            more = used + self._lightened(count)[1]
            if not more.within(room) or not more.within(third):
                break
            used, count = more, count + 1
        return count, room - used

    def _reach(self, room: Cost, stop_at: int) -> int:
        """The oldest turn, not before ``stop_at``, down to which all turns fit."""
        tokens, host_tokens, first = 0, 0, len(self)
        while first > stop_at:
            cost = self._lightened(first - 1)[1]
            tokens += cost.tokens
            host_tokens += cost.host_tokens
            if tokens > room.tokens or host_tokens > room.host_tokens:
                break
            first -= 1
        return first

    def squeeze_newest(self, room: Cost) -> bool:
        """Cuts the longest texts of the newest turn in the middle, if it fits then.

        From here on the turn is sent so, never longer than it was before.
        """
        if self.floor >= len(self):
            return False
        newest = len(self) - 1
        for limit in _SQUEEZE_STEPS:
            if limit > self._squeezed.get(newest, limit):
                continue
            made, cost = self._shortened(newest, limit)
            if cost.within(room):
                self._squeezed[newest], self._light[newest] = limit, (made, cost)
                return True
        return False

    @property
    def newest_is_squeezed(self) -> bool:
        return len(self) - 1 in self._squeezed

    def mark(self, first: int) -> WindowMark | None:
        """What to remember of a window that starts with a turn."""
        if first >= len(self):
            return None
        content_hash = turn_hash(self.of_turn(first))
        # What the number of turns tells is not worth a write with every request.
        by_turns = max(0, len(self) - self.limits.keep_media_turns)
        late = self._media_from > by_turns
        media_index = self.start_of(self._media_from) if late else 0
        # What left the window comes back only where it is refilled or pinned.
        refill, pinned = self.limits.keep_ratio == 1, self.limits.keep_first_turns
        squeezed = tuple(
            (self._starts[turn], limit)
            for turn, limit in sorted(self._squeezed.items())
            if refill or turn >= first or turn < pinned
        )
        return WindowMark(self._starts[first], content_hash, self.key, media_index, squeezed)


def _squeezed(message: Any, limit: int) -> Any:
    head, tail = limit * 2 // 3, limit // 3
    texts = [
        shorten(clean_text(part_text(part) or media_placeholder(part) or ""), head, tail)
        for part in parts_of(field(message, "content"))
    ]
    return Draft(field(message, "role"), "\n".join(text for text in texts if text))
