"""Builds what a request sends.

Pure: no I/O, no clock, nothing of the host. Messages are read by duck typing and
compared by identity. Invariants:

* ``build`` changes no message and no list; the sent list shares the current
  message and everything after it with the host's list.
* Equal input gives equal output; nothing that differs from turn to turn is put
  in front of the current message.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .limits import Cost, Limits, TopicMark, WindowMark
from .message_text import Draft, field, media_bytes, text_of
from .projection import Projection, Report, repaired_history
from .sections import (
    FIXED_FRAME,
    FIXED_MARKER,
    SUMMARY_FRAME,
    SUMMARY_MARKER,
    neutralise_markers,
    with_sections,
)
from .window import Window, split_turns, topic_mark

# The core as other modules and programs know it, whichever file holds a part.
__all__ = [
    "FIXED_FRAME",
    "FIXED_MARKER",
    "SUMMARY_FRAME",
    "SUMMARY_MARKER",
    "Cost",
    "Draft",
    "Limits",
    "Projection",
    "Report",
    "TopicMark",
    "WindowMark",
    "build",
    "history_of",
    "neutralise_markers",
    "repaired_history",
    "split_turns",
    "topic_mark",
    "with_sections",
]


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


def history_of(messages: Sequence[Any]) -> list[Any]:
    """The finished messages of a request's list: no system messages or begin-dialogs."""
    return _split_request(messages)[2]


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
    covered: int = 0,
    topic: TopicMark | None = None,
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
        covered: Leading messages of the history that the summary covers.
        topic: Where a new topic began in this conversation.

    Returns:
        The projection. The current message and all after it are shared.
    """
    systems, dialogs, history, position = _split_request(messages)
    running = list(messages[position:]) if position >= 0 else []
    prompt = text_of(field(systems[0], "content")) if systems else ""
    head = _head(systems, prompt, fixed_memory, summary, make_message)
    sections = _section_sizes(prompt, fixed_memory, summary, head, measure, make_message)
    fixed = sum((measure(m) for m in (*head, *dialogs, *running)), Cost())
    window = Window(
        history,
        limits,
        measure,
        make_message,
        mark=mark,
        covered=covered,
        topic=topic,
        running_media=sum(map(media_bytes, running)),
    )
    sections |= {
        "framing": limits.framing,
        "tools": tool_tokens,
        "begin_dialogs": _tokens(dialogs, measure),
    }
    room = _room(limits, fixed, tool_tokens)
    # Without a user message nothing marks the end of the finished turns.
    if position >= 0:
        selected = _select(window, room)
    else:
        selected = _Selected(history, _tokens(history, measure))
    sections |= {"window": selected.tokens, "current": _tokens(running, measure)}
    handed_over = [*head, *dialogs, *selected.sent]
    return Projection(
        messages=[*handed_over, *running],
        before=list(messages[: position if position >= 0 else len(messages)]),
        current=messages[position] if position >= 0 else None,
        handed_over=handed_over,
        mark=window.mark(selected.first),
        report=_report(limits, sections, window, selected),
        changed_history=len(history) != len(selected.sent)
        or any(a is not b for a, b in zip(history, selected.sent, strict=True)),
    )


@dataclass(frozen=True, slots=True)
class _Selected:
    """What is sent of the finished turns; ``first`` as in ``Choice``."""

    sent: list[Any]
    tokens: int
    first: int = 0
    pinned: int = 0
    squeezed: bool = False


def _select(window: Window, room: Cost) -> _Selected:
    if room.tokens <= 0 or room.host_tokens <= 0:
        return _Selected([], 0, len(window))
    choice = window.choose(room)
    pinned, first = choice.pinned, choice.first
    if first == len(window) > pinned and window.squeeze_newest(choice.room):
        first -= 1
    turns = [*range(pinned), *range(first, len(window))]
    sent = [message for turn in turns for message in window.messages(turn)]
    squeezed = turns[-1:] == [len(window) - 1] and window.newest_is_squeezed
    return _Selected(sent, sum(map(window.tokens, turns)), first, pinned, squeezed)


def _report(
    limits: Limits, sections: dict[str, int], window: Window, selected: _Selected
) -> Report:
    first, pinned = selected.first, selected.pinned
    gap = (window.start_of(pinned) if pinned else 0, window.start_of(first))
    stored = set(map(id, [*window.history[: gap[0]], *window.history[gap[1] :]]))
    left_out = first > pinned
    return Report(
        budget=limits.usable,
        sections=sections,
        total_turns=len(window),
        first_turn=first if left_out else 0,
        pinned=pinned if left_out else 0,
        left_out=gap if left_out else (0, 0),
        lightened=sum(id(m) not in stored for m in selected.sent),
        squeezed=selected.squeezed,
        cut=first > max(window.remembered or 0, pinned),
        reason=window.floor_reason if pinned < first <= window.floor else "",
        before_tail=window.start_of(window.tail) if limits.tail_tokens else 0,
    )


def _head(
    systems: list[Any],
    prompt: str,
    fixed_memory: str,
    summary: str,
    make_message: Callable[[Draft], Any],
) -> list[Any]:
    empty = not fixed_memory.strip() and not summary.strip()
    if empty and neutralise_markers(prompt) == prompt:
        return systems
    text = with_sections(prompt, fixed_memory, summary)
    return [make_message(Draft("system", text)), *systems[1:]]


def _room(limits: Limits, fixed: Cost, tool_tokens: int) -> Cost:
    tokens = limits.room - limits.framing - tool_tokens - fixed.tokens
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
    fixed = max(0, with_fixed - bare)
    written = max(0, measure(head[0]).tokens - with_fixed) if summary.strip() else 0
    # Whatever else stands in front of the messages is another plugin's, or the host's.
    return {"system": total - fixed - written, "fixed_memory": fixed, "summary": written}
