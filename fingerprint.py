"""What tells whether two lists of messages are stored as the same history.

Pure. Messages are the host's objects or the dicts it stores, and both give the same
fingerprint: what a request holds can be compared with what was stored long before,
without building either form from the other.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from .message_text import CHECKPOINT_ROLE, field, part_text, parts_of, tool_calls_of

# The host saves even a message that is marked otherwise if its role is another one.
UNSAVED_ROLES = ("user", "assistant")


class Fingerprint(NamedTuple):
    """Number of stored entries, checkpoints included, and a hash of them."""

    count: int
    digest: str


def fingerprint(messages: Sequence[Any], prompt: Any = None) -> Fingerprint:
    """The fingerprint of messages as the host stores them.

    Args:
        messages: All stored ones, or all of the host's objects; those that it does not
            save do not count. Checkpoints may be messages of their own or bound to the
            one before them.
        prompt: The system message among them that the host does not save.
    """
    if messages and isinstance(messages[0], dict):
        count, pieces = len(messages), [p for record in messages for p in _of_record(record)]
    else:
        count, pieces = _of_objects(messages, prompt)
    whole = "\x03".join(pieces).encode("utf-8", "surrogatepass")
    return Fingerprint(count, hashlib.sha256(whole).hexdigest()[:32])


def _of_objects(messages: Sequence[Any], prompt: Any) -> tuple[int, list[str]]:
    """How many entries the host stores for its objects, and their pieces."""
    pieces: list[str] = []
    count = len(messages)
    # Every message of a long chat, at every request: no call for each, and pydantic's
    # own way to a private attribute costs more than all the rest.
    for message in messages:
        role, content = message.role, message.content
        private = message.__pydantic_private__
        if message is prompt or (private["_no_save"] and role in UNSAVED_ROLES):
            count -= 1
            continue
        pieces.append(role)
        if type(content) is str:
            pieces.append(content)
        elif content:
            for part in content:
                if not part.__pydantic_private__["_no_save"]:
                    text = part.__dict__.get("text")
                    pieces.append("\x05" + text if type(text) is str else _other(part))
        if message.tool_calls or message.tool_call_id:
            pieces.append(_calls(message))
        if (checkpoint := private["_checkpoint_after"]) is not None:
            count += 1
            pieces.append(_checkpoint(checkpoint))
    return count, pieces


def _of_record(record: dict[str, Any]) -> list[str]:
    """The pieces of a stored message or checkpoint."""
    role, content = record.get("role"), record.get("content")
    if role == CHECKPOINT_ROLE:
        return [_checkpoint(content)]
    pieces = [f"{role}"]
    if isinstance(content, str):
        pieces.append(content)
    else:
        for part in parts_of(content):
            text = part_text(part)
            pieces.append(_other(part) if text is None else "\x05" + text)
    if record.get("tool_calls") or record.get("tool_call_id"):
        pieces.append(_calls(record))
    return pieces


def _checkpoint(content: Any) -> str:
    return f"\x04{field(content, 'id')}"


def _calls(message: Any) -> str:
    return f"\x01{tool_calls_of(message)}\x02{field(message, 'tool_call_id') or ''}"


def _other(part: Any) -> str:
    return f"\x06{_dumped(part)}"


def _dumped(part: Any) -> str:
    raw = part if isinstance(part, dict) else part.model_dump()
    return json.dumps(without_nothing(raw), sort_keys=True, default=str)


def without_nothing(value: Any) -> Any:
    """A JSON value without its empty fields, which the host adds and leaves out at will."""
    if isinstance(value, dict):
        return {k: without_nothing(v) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [without_nothing(item) for item in value]
    return value
