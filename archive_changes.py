"""What a conversation's new state in the host changes in the archive.

Pure: no I/O and no clock. Invariants:

* What a request added is new, whatever it equals, if the last look was before it.
* What a user deleted here is not added again while the host holds it.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .archive_rows import (
    Insertion,
    Turn,
    content_hash,
    plan_changes,
    short_hash,
    still_there,
    without,
)

# Rows a step: a request that waits for the database waits for one step at most.
STEP = 200


@dataclass(frozen=True, slots=True)
class HostConversation:
    """A conversation as the host lists it; times in unix seconds.

    Attributes:
        updated_at: Moves with every change by the host, also within a second.
    """

    conversation_id: str
    session_id: str
    title: str
    created_at: float
    updated_at: float


@dataclass(frozen=True, slots=True)
class Known:
    """What the archive knows of a conversation in the host.

    Attributes:
        seen_at: The host's state when it was last taken over; 0 if it never was.
        forgotten_count: Messages that a user deleted here while the host held them.
        forgotten: Their short hashes; empty if only their number was noted.
        rows: ``(id, seq, content_hash, time)`` of those that the host held.
    """

    seen_at: float
    forgotten_count: int
    forgotten: list[str]
    rows: list[tuple[int, int, str, int]]


@dataclass(frozen=True, slots=True)
class Change:
    """What has to be done to the rows of a conversation.

    Attributes:
        messages: All that are to be in the archive.
        turn: What is known of the newest of them.
        forgotten: Hashes of the host's other messages.
        was_reset: Whether all rows there are belong to what was said before a reset.
        gone: Ids of rows that the host no longer holds.
        steps: What is to be added, in the order of the transactions.
    """

    messages: list[dict[str, Any]]
    turn: Turn | None
    forgotten: list[str]
    was_reset: bool
    gone: list[int]
    steps: list[Insertion]


def plan_change(
    known: Known,
    conversation: HostConversation,
    messages: Sequence[dict[str, Any]],
    turn: Turn | None,
) -> Change:
    """What has to be done to the rows of a conversation."""
    hashes = [content_hash(message) for message in messages]
    old = [row[2] for row in known.rows]
    loaded = _loaded(known, conversation, hashes, turn)
    forgotten = _forgotten(known, hashes, loaded)
    plan = plan_changes(old if loaded else [], without(hashes, forgotten))
    was_reset = bool(old) and (not loaded or (len(plan.gone) == len(old) and not forgotten))
    places = [row[1] for row in known.rows]
    return Change(
        messages=without(messages, forgotten),
        turn=turn and replace(turn, start=turn.start - bisect_left(forgotten, turn.start)),
        forgotten=[hashes[index] for index in forgotten],
        was_reset=was_reset,
        gone=[] if was_reset else [known.rows[place][0] for place in plan.gone],
        steps=list(_steps(plan.insertions, places)),
    )


def _loaded(
    known: Known, conversation: HostConversation, hashes: Sequence[str], turn: Turn | None
) -> int:
    """How many of the messages may be known ones; the others are new, whatever they equal."""
    if turn is None:
        return len(hashes)
    if known.seen_at < turn.time <= conversation.updated_at:
        return min(turn.start, len(hashes))
    # What was seen last may be what this very turn has made.
    seen = [*known.forgotten, *(short_hash(row[2]) for row in known.rows)]
    is_seen = [short_hash(digest) for digest in hashes[: len(seen)]] == seen
    return len(hashes) if turn.start or is_seen else 0


def _forgotten(known: Known, hashes: Sequence[str], loaded: int) -> list[int]:
    """Which of the messages a user deleted here, in order."""
    count = known.forgotten_count
    if count == len(known.forgotten):
        return still_there(known.forgotten, [row[2] for row in known.rows], hashes[:loaded])
    # An older version noted their number only. One that became shorter was reset, unless
    # its request tells otherwise.
    was_reset = loaded == len(hashes) < count
    return [] if was_reset else list(range(min(count, loaded)))


def _steps(insertions: Sequence[Insertion], places: Sequence[int]) -> Iterator[Insertion]:
    """The insertions in bounded steps; ``before`` becomes a place in the archive.

    Those at the end come first, so that the places of earlier rows stay as they were read.
    """
    for insertion in reversed(insertions):
        before = None if insertion.before is None else places[insertion.before]
        for start in range(insertion.start, insertion.end, STEP):
            end = min(start + STEP, insertion.end)
            yield Insertion(start, end, before)
            before = None if before is None else before + end - start
