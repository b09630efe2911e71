"""Builds what a request sends.

Pure: no I/O, no clock, nothing of the host. Messages are read by duck typing and
compared by identity. Invariants:

* ``build`` changes no message and no list; the sent list shares the current
  message and everything after it with the host's list.
* Equal input gives equal output; nothing that differs from turn to turn is put
  in front of the current message.
"""

from collections.abc import Callable, Sequence
from typing import Any

from .message_text import Draft, field, text_of
from .projection import Projection, Report, repaired_history
from .sections import (
    FIXED_FRAME,
    FIXED_MARKER,
    SUMMARY_FRAME,
    SUMMARY_MARKER,
    neutralise_markers,
    with_sections,
)
from .window import Cost, Limits, Window, WindowMark, split_turns

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
    "WindowMark",
    "build",
    "neutralise_markers",
    "repaired_history",
    "split_turns",
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
    window = Window(history, limits, measure, make_message)
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


def _select(window: Window, room: Cost, mark: WindowMark | None) -> tuple[int, list[Any], bool]:
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
