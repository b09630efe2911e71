"""What is noted about a request while it runs, and the record made of it.

Nothing here does I/O. ``record_of`` counts tokens and may run in a thread.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from .calibration import Counts
from .context_logic import Projection
from .message_text import field as field_of
from .request_log import RequestRecord, Usage


@dataclass(slots=True)
class Measurements:
    """Measured on one request.

    Attributes:
        at: When it began, in unix seconds.
        model: The model it was meant for.
        usage: What the provider reported for the last call; None if nothing.
        milliseconds: What the request waited for the plugin, not for the model.
    """

    at: int
    model: str = ""
    usage: Usage | None = None
    milliseconds: float = 0


@dataclass(frozen=True, slots=True)
class SentHead:
    """What stood before the history in a session's last request.

    Attributes:
        messages: The host's system messages and begin-dialogs, without our sections.
        beside: What the tool schemas are counted by.
        sizes: Estimated tokens of what does not depend on the history.
        at: Unix seconds.
    """

    messages: list[Any]
    beside: Counts
    sizes: dict[str, int]
    at: int


def head_of(projection: Projection, beside: Counts, at: int) -> SentHead:
    """The head of a request that was just built."""
    messages = takewhile(
        lambda m: field_of(m, "role") == "system" or field_of(m, "_no_save"), projection.before
    )
    return SentHead(list(messages), beside, head_sizes(projection.report.sections), at)


def head_sizes(sections: dict[str, int]) -> dict[str, int]:
    """Sizes of the sections that do not depend on the history."""
    names = ("system", "tools", "begin_dialogs", "current")
    return {name: sections.get(name, 0) for name in names}


def record_of(
    session_id: str,
    projection: Projection,
    measured: Measurements,
    final: list[Any],
    size: Callable[[Any], int],
) -> RequestRecord:
    """The record of a request.

    Args:
        session_id: The session.
        projection: What was built.
        measured: What was measured.
        final: The run's messages at its end.
        size: Tokens of a message, for what tool calls added.
    """
    report, usage = projection.report, measured.usage
    sections = dict(report.sections)
    added = projection.added(final)
    # The last message is the reply: the reported call did not hold it.
    if steps := sum(map(size, added[:-1])):
        sections["tool_steps"] = steps
    return RequestRecord(
        session_id=session_id,
        time=measured.at,
        model=measured.model,
        sections=sections,
        estimated=sum(sections.values()),
        prompt_tokens=usage.prompt_tokens if usage else None,
        cached_tokens=usage.cached_tokens if usage else None,
        output_tokens=usage.output_tokens if usage else None,
        first_turn=report.first_turn,
        left_out_turns=report.left_out_turns,
        milliseconds=round(measured.milliseconds, 1),
        budget=report.budget,
        total_turns=report.total_turns,
        left_out_messages=report.left_out_messages,
        lightened=report.lightened,
        reason=report.reason,
    )
