"""How much of a conversation a summary covers.

The watermark of a summary is a number of messages and a hash of exactly those
messages. It holds only while the stored conversation still begins with them.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from .message_text import CHECKPOINT_ROLE


def without_checkpoints(history: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages of a stored history, without the host's own records."""
    return [message for message in history if message.get("role") != CHECKPOINT_ROLE]


def prefix_hash(messages: Sequence[dict[str, Any]]) -> str:
    """Hash of a list of stored messages; checkpoints do not count.

    Returns:
        SHA-256 in hex over the canonical JSON of the messages.
    """
    digest = hashlib.sha256()
    for message in without_checkpoints(messages):
        digest.update(json.dumps(message, sort_keys=True).encode())
        digest.update(b"\n")
    return digest.hexdigest()


def covers(history: Sequence[dict[str, Any]], covered: int, expected_hash: str) -> bool:
    """Whether a history still begins with the ``covered`` messages of that hash."""
    messages = without_checkpoints(history)
    return len(messages) >= covered and prefix_hash(messages[:covered]) == expected_hash
