"""What a conversation should hold that was saved from a cut list.

One rule for every place it is applied at: a list is repaired only if it was saved
from that very cut. ``cut`` is a request whose list was cut and not restored.
"""

from dataclasses import dataclass
from typing import Any

from .host import Host
from .projection import repaired_behind_short, repaired_history

History = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class EarlyLook:
    """What a conversation held when its cut request had just ended.

    Attributes:
        saved: What was saved from the cut.
        repaired: What it should have been.
    """

    saved: History
    repaired: History


def repaired_store(host: Host, cut: Any, stored: History) -> History | None:
    """The whole history for a stored list that was saved from a cut, or None."""
    sent, whole, loaded = _saved_forms(host, cut)
    return repaired_history(stored, sent, whole, loaded)


def repaired_behind(host: Host, cut: Any, early: EarlyLook, stored: History) -> History | None:
    """The same once a request without the plugin has saved over it."""
    loaded = host.saved_form(cut.projection.before)
    return repaired_behind_short(stored, early.saved, early.repaired, loaded)


def repaired_list(host: Host, cut: Any, messages: list[Any]) -> list[Any] | None:
    """The loaded list with the whole history in place of a saved cut, or None."""
    start = next(
        (i for i, m in enumerate(messages) if m.role != "system" and not m._no_save), len(messages)
    )
    sent, whole, loaded = _saved_forms(host, cut)
    if repaired_history(host.saved_form(messages), sent, whole, loaded) is None:
        return None
    restored = host.saved_messages(cut.whole())
    end = start + len(host.saved_messages(cut.run_context.messages))
    # The host added the turn's checkpoint when it saved, behind the last message.
    restored[-1]._checkpoint_after = messages[end - 1]._checkpoint_after
    return [*messages[:start], *restored, *messages[end:]]


def _saved_forms(host: Host, cut: Any) -> tuple[History, History, History]:
    """What the host saved from a cut, what it should have saved, and what it loaded."""
    final = cut.run_context.messages
    return (
        host.saved_form(final),
        host.saved_form(cut.whole()),
        host.saved_form(cut.projection.before),
    )
