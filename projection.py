"""A built request, and the way back to what the host must save.

Pure. Messages are compared by identity. Invariants:

* ``Projection.restore`` gives the whole history plus whatever the run added, on
  any final list, and applying it twice is the same as applying it once.
* A stored list is repaired only if it was saved from that very cut.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from itertools import chain
from operator import is_
from typing import Any

from .limits import WindowMark

# Messages that the host puts in place of those it compressed.
_HOST_SUMMARY = 2


@dataclass(slots=True)
class Report:
    """What a request holds, in estimated tokens, for logs, page and status.

    Attributes:
        budget: Tokens it may use.
        sections: Tokens by section.
        total_turns: Finished turns of the conversation.
        first_turn: The first of them in the run that ends at the newest.
        pinned: First turns that are sent all the same.
        left_out: Positions ``(start, end)`` in the history that are not sent.
        lightened: Messages that are sent in a lighter form.
        squeezed: Whether the newest turn had to be shortened to fit.
        cut: Whether the window moved with this request.
        reason: Why turns are left out whatever the budget (``topic``,
            ``summary``); empty if only the budget does it.
        before_tail: Messages before the tail; 0 without one.
    """

    budget: int = 0
    sections: dict[str, int] = dataclass_field(default_factory=dict)
    total_turns: int = 0
    first_turn: int = 0
    pinned: int = 0
    left_out: tuple[int, int] = (0, 0)
    lightened: int = 0
    squeezed: bool = False
    cut: bool = False
    reason: str = ""
    before_tail: int = 0

    @property
    def estimated(self) -> int:
        return sum(self.sections.values())

    @property
    def left_out_turns(self) -> int:
        return self.first_turn - self.pinned

    @property
    def left_out_messages(self) -> int:
        return self.left_out[1] - self.left_out[0]

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
        changed_history: Whether the host would save anything else than without
            the plugin.
    """

    messages: list[Any]
    before: list[Any]
    current: Any
    handed_over: list[Any]
    mark: WindowMark | None
    report: Report
    changed_history: bool = False

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
        return [*self._start, *self.added(final)]

    def added(self, final: Sequence[Any]) -> list[Any]:
        """What the run added behind the current message; see ``restore``."""
        position = next((i for i, m in enumerate(final) if m is self.current), -1)
        added = final if self.current is None else final[position + 1 :]
        given = [*self.handed_over, self.current]
        # A run that only added to its list does not hold what it was never given.
        untouched = position == len(self.handed_over) and all(map(is_, final, given))
        old = given if untouched else chain(given, self.before)
        known = set(map(id, added)).intersection(map(id, old))
        return [message for message in added if id(message) not in known]

    def cut_at_save(self, final: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Where the new messages begin in a list that was saved and not restored.

        The host may have cut or compressed it once more.

        Args:
            final: The saved messages.

        Returns:
            The history before the first new message, and the list up to and including
            it; empty if nothing is new.
        """
        position = next((i for i, m in enumerate(final) if m is self.current), -1)
        if position >= 0:
            return self.before, list(final[: position + 1])
        new = next(iter(map(id, self.added(final))), None)
        position = next((i for i, m in enumerate(final) if id(m) == new), -1)
        return self._start, list(final[: position + 1])

    @property
    def _start(self) -> list[Any]:
        return self.before if self.current is None else [*self.before, self.current]


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
    # A list that was sent uncut begins with the history too, and was saved all the same.
    if stored[: len(loaded)] == loaded and sent[: len(loaded)] != loaded:
        return None
    return [*whole, *stored[len(sent) :]] if whole != sent else None


def repaired_behind_short(
    stored: list[Any], short: list[Any], repaired: list[Any], loaded: list[Any]
) -> list[Any] | None:
    """What a conversation should hold whose short list was loaded and saved once more.

    Only once the plugin is switched off: then nobody mends the list that a waiting
    message loads, and the host may drop more of it before it saves. What it left is the
    end of the short list, maybe behind a summary of its own; all that follows is new.

    Args:
        stored: The conversation as stored now.
        short: As it was saved from the cut list.
        repaired: What ``short`` should have been.
        loaded: The history before the cut request.

    Returns:
        The whole history with everything new behind it, or None if nothing is stored or
        it is whole already.
    """
    if not stored or stored[: len(loaded)] == loaded:
        return None
    # Behind a summary a single equal message may be an accident.
    for start, least in ((0, 1), (_HOST_SUMMARY, 2)):
        for length in range(min(len(short), len(stored) - start), least - 1, -1):
            if stored[start : start + length] == short[-length:]:
                return [*repaired, *stored[start + length :]]
    return [*repaired, *stored]
