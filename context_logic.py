"""Builds what a request sends, and gives back what the host must save.

Pure: no I/O, no clock, nothing of the host. Messages are read by duck typing and
compared by identity. Invariants:

* ``build`` changes no message and no list; the sent list shares the current
  message and everything after it with the host's list.
* The sent window is a contiguous run of whole turns that ends at the newest.
* ``Projection.restore`` gives the whole history plus whatever the run added, on
  any final list, and applying it twice is the same as applying it once.
* Equal input gives equal output; nothing that differs from turn to turn is put
  in front of the current message.
"""

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
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

FIXED_MARKER = "===== Fixed Memory ====="
SUMMARY_MARKER = "===== AI Summary ====="
FIXED_FRAME = "Facts and rules written by the operator of this chat. They always apply."
SUMMARY_FRAME = (
    "Summary of earlier parts of this conversation. Where the messages below differ "
    "from it, the newer messages are right."
)

_MARKER_LINE = re.compile(
    r"^(\s*)(=+)(\s*(?:Fixed Memory|AI Summary)\s*)(=+)(\s*)$", re.IGNORECASE | re.MULTILINE
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


@dataclass(slots=True)
class Report:
    """What a request holds, in estimated tokens, for logs, page and status."""

    budget: int = 0
    sections: dict[str, int] = dataclass_field(default_factory=dict)
    total_turns: int = 0
    first_turn: int = 0
    left_out_messages: int = 0
    squeezed: bool = False
    cut: bool = False

    @property
    def estimated(self) -> int:
        return sum(self.sections.values())

    @property
    def left_out_turns(self) -> int:
        return self.first_turn

    @property
    def overrun(self) -> int:
        """Tokens over the budget; 0 if it is kept."""
        return max(0, self.estimated - self.budget)


@dataclass(slots=True)
class Projection:
    """A built request and the way back.

    Attributes:
        messages: What is sent.
        before: The host's own messages before the current one.
        current: The current user message (None: the list has none).
        handed_over: What is sent before the current message.
        mark: Window to remember, or None.
        report: Numbers for people.
    """

    messages: list[Any]
    before: list[Any]
    current: Any
    handed_over: list[Any]
    mark: WindowMark | None
    report: Report

    @property
    def changed_history(self) -> bool:
        """Whether the host would save anything else than without the plugin."""
        before = [m for m in self.before if field(m, "role") != "system"]
        sent = [m for m in self.handed_over if field(m, "role") != "system"]
        return len(before) != len(sent) or any(
            a is not b for a, b in zip(before, sent, strict=True)
        )

    def restore(self, final: Sequence[Any]) -> list[Any]:
        """The list the host should save.

        Args:
            final: The list as it is after the run; the host may have cut,
                compressed or extended it.

        Returns:
            Everything that stood before the current message, the current
            message, and every message that came after it. If the host dropped
            the current message, all messages that were not handed over follow
            it, in order.
        """
        if self.current is None:
            return self._restore_without_current(final)
        position = next((i for i, m in enumerate(final) if m is self.current), -1)
        known = {id(m) for m in (*self.handed_over, *self.before, self.current)}
        added = [m for m in final[position + 1 :] if id(m) not in known]
        return [*self.before, self.current, *added]

    def _restore_without_current(self, final: Sequence[Any]) -> list[Any]:
        known = {id(m) for m in (*self.handed_over, *self.before)}
        return [*self.before, *(m for m in final if id(m) not in known)]


def neutralise_markers(text: str) -> str:
    """Makes lines that look like a section marker harmless."""
    return _MARKER_LINE.sub(
        lambda m: m[1] + "-" * len(m[2]) + m[3] + "-" * len(m[4]) + m[5], clean_text(text)
    )


def with_sections(system_prompt: str, fixed_memory: str, summary: str) -> str:
    """The system prompt with the sections behind it; empty ones are left out."""
    blocks = [neutralise_markers(system_prompt).rstrip()] if system_prompt.strip() else []
    for marker, frame, text in (
        (FIXED_MARKER, FIXED_FRAME, fixed_memory),
        (SUMMARY_MARKER, SUMMARY_FRAME, summary),
    ):
        if text.strip():
            blocks.append(f"{marker}\n{frame}\n\n{neutralise_markers(text).strip()}")
    return "\n\n".join(blocks)


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


class _Window:
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


def _split_request(messages: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any], int]:
    """System messages, begin-dialogs, history, and where the current message is.

    The position is -1 if there is no user message at all.
    """
    current = next(
        (i for i in range(len(messages) - 1, -1, -1) if field(messages[i], "role") == "user"), -1
    )
    end = current if current >= 0 else len(messages)
    position = 0
    while position < end and field(messages[position], "role") == "system":
        position += 1
    dialogs_end = position
    while dialogs_end < end and field(messages[dialogs_end], "_no_save"):
        dialogs_end += 1
    return (
        list(messages[:position]),
        list(messages[position:dialogs_end]),
        list(messages[dialogs_end:end]),
        current,
    )


def build(
    messages: Sequence[Any],
    *,
    fixed_memory: str,
    summary: str,
    limits: Limits,
    mark: WindowMark | None,
    tool_tokens: int,
    measure: Callable[[Any], Cost],
    make_message: Callable[[Draft], Any],
) -> Projection:
    """Builds one request.

    Args:
        messages: The host's complete list: system message, begin-dialogs,
            history, current user message.
        fixed_memory: Text of the user, may be empty.
        summary: Text of the summary, may be empty.
        limits: Budget and window settings.
        mark: The remembered window of this conversation.
        tool_tokens: Tokens of the tool schemas sent beside the messages.
        measure: Size of one message.
        make_message: Turns a ``Draft`` into a message of the host.

    Returns:
        The projection. The current message and all after it are shared.
    """
    systems, dialogs, history, position = _split_request(messages)
    running = list(messages[position:]) if position >= 0 else []
    prompt = text_of(field(systems[0], "content")) if systems else ""
    head = _head(systems, prompt, fixed_memory, summary, make_message)
    sections = _section_sizes(prompt, fixed_memory, summary, head, measure, make_message)
    fixed = sum((measure(m) for m in (*head, *dialogs, *running)), Cost())
    room = _room(limits, fixed, tool_tokens)
    window = _Window(history, limits, measure, make_message)
    # Without a user message nothing marks the end of the finished turns.
    first, sent, squeezed = _select(window, room, mark) if position >= 0 else (0, history, False)
    report = Report(
        budget=limits.budget,
        sections=sections
        | {
            "tools": tool_tokens,
            "begin_dialogs": _tokens(dialogs, measure),
            "window": _tokens(sent, measure),
            "current": _tokens(running, measure),
        },
        total_turns=len(window.turns),
        first_turn=first,
        left_out_messages=window.start_of(first),
        squeezed=squeezed,
        cut=first > window.remembered(mark),
    )
    handed_over = [*head, *dialogs, *sent]
    return Projection(
        messages=[*handed_over, *running],
        before=list(messages[: position if position >= 0 else len(messages)]),
        current=messages[position] if position >= 0 else None,
        handed_over=handed_over,
        mark=window.mark(first),
        report=report,
    )


def _select(window: _Window, room: Cost, mark: WindowMark | None) -> tuple[int, list[Any], bool]:
    """First turn, messages to send, and whether the newest turn was squeezed."""
    if room.tokens <= 0 or room.host_tokens <= 0:
        return len(window.turns), [], False
    first = window.choose(room, mark)
    if first == len(window.turns) and (squeezed := window.squeeze_newest(room)):
        return first - 1, squeezed, True
    sent = [m for turn in range(first, len(window.turns)) for m in window.messages(turn)]
    return first, sent, False


def _head(
    systems: list[Any],
    prompt: str,
    fixed_memory: str,
    summary: str,
    make_message: Callable[[Draft], Any],
) -> list[Any]:
    if not fixed_memory.strip() and not summary.strip():
        return systems
    text = with_sections(prompt, fixed_memory, summary)
    return [make_message(Draft("system", text)), *systems[1:]]


def _room(limits: Limits, fixed: Cost, tool_tokens: int) -> Cost:
    tokens = limits.budget - limits.reply_reserve - tool_tokens - fixed.tokens
    if limits.host_limit is None:
        return Cost(tokens, 1 << 60)
    return Cost(tokens, limits.host_limit - fixed.host_tokens)


def _tokens(messages: Sequence[Any], measure: Callable[[Any], Cost]) -> int:
    return sum(measure(m).tokens for m in messages)


def _section_sizes(
    prompt: str,
    fixed_memory: str,
    summary: str,
    head: list[Any],
    measure: Callable[[Any], Cost],
    make_message: Callable[[Draft], Any],
) -> dict[str, int]:
    def size(text: str) -> int:
        return measure(make_message(Draft("system", text))).tokens if text else 0

    total = _tokens(head, measure)
    bare = size(prompt)
    with_fixed = size(with_sections(prompt, fixed_memory, "")) if fixed_memory.strip() else bare
    return {
        "system": min(bare, total),
        "fixed_memory": max(0, with_fixed - bare),
        "summary": max(0, total - with_fixed) if summary.strip() else 0,
    }


def repaired_history(
    stored: list[Any], sent: list[Any], whole: list[Any], loaded: list[Any]
) -> list[Any] | None:
    """What a conversation should hold that was saved from a cut list.

    Args:
        stored: The conversation as stored now.
        sent: What the host would have saved from the cut list.
        whole: What it would have saved from the restored list.
        loaded: The history before the request.

    Returns:
        The whole history with everything that was saved since behind it, or
        None if the stored list was not saved from the cut list: nothing was
        saved, it is whole already, or somebody reset, edited or deleted it.
    """
    if not sent or stored[: len(sent)] != sent:
        return None
    if stored[: len(loaded)] == loaded:
        return None
    return [*whole, *stored[len(sent) :]]


def repaired_behind_turn(
    stored: list[Any], turn: list[Any], whole: list[Any], loaded: list[Any]
) -> list[Any] | None:
    """What a conversation should hold whose cut copy the host cut once more.

    Only once the plugin is switched off: then nobody mends the list that a waiting
    message loads. ``turn`` is what the host saved from the turn's user message on;
    the rest is as in ``repaired_history``.
    """
    if not turn or stored[: len(loaded)] == loaded:
        return None
    for start in range(len(stored) - len(turn) + 1):
        if stored[start : start + len(turn)] == turn:
            return [*whole, *stored[start + len(turn) :]]
    return None
