"""How much of a conversation a summary covers.

The watermark of a summary is a conversation, a number of its messages and a hash
of exactly those messages. It holds only while that conversation is the present one
and still begins with them; otherwise nothing of the present one is covered.

Messages are read by duck typing, so that a history has the same hash as stored
records and as the host's message objects. What no summarising model reads and the
host may drop by itself, reasoning and checkpoints, does not count.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from .message_text import (
    CHECKPOINT_ROLE,
    field,
    media_kind,
    part_text,
    parts_of,
    tool_calls_of,
)


class Watermark(Protocol):
    """What a summary says it covers; a version of a summary is one."""

    conversation_id: str | None
    covered: int
    prefix_hash: str


@dataclass(frozen=True, slots=True)
class Zones:
    """Where the messages of a conversation are; the three parts add up to ``total``.

    Attributes:
        total: Messages of the conversation, without checkpoints.
        sent: Those that the next request sends.
        covered: Those that are not sent but covered by the summary.
        left_out: Those that are neither.
    """

    total: int
    sent: int
    covered: int
    left_out: int


def without_checkpoints(history: Sequence[Any]) -> list[Any]:
    """The messages of a stored history, without the host's own records."""
    return [message for message in history if field(message, "role") != CHECKPOINT_ROLE]


def prefix_hash(messages: Sequence[Any]) -> str:
    """Hash of a list of messages; checkpoints do not count.

    Returns:
        SHA-256 in hex.
    """
    digest = hashlib.sha256()
    for message in without_checkpoints(messages):
        digest.update(json.dumps(_identity(message)).encode())
        digest.update(b"\n")
    return digest.hexdigest()


def _identity(message: Any) -> list[Any]:
    parts = [_part(part) for part in parts_of(field(message, "content"))]
    return [
        field(message, "role"),
        [part for part in parts if part],
        tool_calls_of(message),
        field(message, "tool_call_id") or "",
    ]


def _part(part: Any) -> Any:
    kind = media_kind(part)
    if kind is None:
        return part_text(part)
    source = field(part, "image_url") or field(part, "audio_url") or field(part, "input_audio")
    return [kind, str(field(source, "url") or field(source, "data") or "")]


def covers(history: Sequence[Any], covered: int, expected_hash: str) -> bool:
    """Whether a history still begins with the ``covered`` messages of that hash."""
    messages = without_checkpoints(history)
    return len(messages) >= covered and prefix_hash(messages[:covered]) == expected_hash


def covered_messages(
    watermark: Watermark | None, conversation_id: str | None, history: Sequence[Any]
) -> int:
    """How many messages of a conversation a summary covers.

    Args:
        watermark: What the summary says it covers; None if it says nothing.
        conversation_id: The present conversation.
        history: Its messages, stored records or the host's objects.

    Returns:
        The number of messages, checkpoints not counted; 0 if the prefix was edited
        or cleared, or belongs to another conversation.
    """
    if watermark is None or not watermark.covered or conversation_id is None:
        return 0
    if watermark.conversation_id != conversation_id:
        return 0
    holds = covers(history, watermark.covered, watermark.prefix_hash)
    return watermark.covered if holds else 0


def zones(total: int, covered: int, window_start: int, first_end: int = 0) -> Zones:
    """Divides a conversation of ``total`` messages.

    Args:
        total: Messages of the conversation.
        covered: Messages at its beginning that the summary covers.
        window_start: Messages before the window.
        first_end: Messages at the beginning that are always sent.
    """
    first_end = min(first_end, window_start)
    unsent = window_start - first_end
    covered_unsent = min(max(0, covered - first_end), unsent)
    return Zones(total, total - unsent, covered_unsent, unsent - covered_unsent)
