"""What tells whether two lists of messages are stored as the same history.

Pure. Messages are the host's objects or the dicts it stores, and both give the same
fingerprint: what a request holds can be compared with what was stored long before,
without building either form from the other.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from .message_text import CHECKPOINT_ROLE, field, part_text, parts_of, tool_calls_of


class Fingerprint(NamedTuple):
    """Number of stored entries, checkpoints included, and a hash of them."""

    count: int
    digest: str


def fingerprint(messages: Sequence[Any]) -> Fingerprint:
    """The fingerprint of messages as the host stores them.

    Args:
        messages: Without those that the host does not save; checkpoints may be
            messages of their own or bound to the one before them.
    """
    pieces: list[str] = []
    count = len(messages)
    # Every message of a long chat, at every request: plain ones are read directly.
    for message in messages:
        if isinstance(message, dict):
            role, content = message.get("role"), message.get("content")
            calls, call_id = message.get("tool_calls"), message.get("tool_call_id")
            checkpoint = None
        else:
            role, content = message.role, message.content
            calls, call_id = message.tool_calls, message.tool_call_id
            checkpoint = _private(message, "_checkpoint_after")
        if role == CHECKPOINT_ROLE:
            pieces.append(_checkpoint(content))
            continue
        pieces.append(f"{role}")
        if type(content) is str:
            pieces.append(content)
        else:
            pieces.extend(_parts(content))
        if calls or call_id:
            pieces.append(f"\x01{tool_calls_of(message)}\x02{call_id or ''}")
        if checkpoint is not None:
            count += 1
            pieces.append(_checkpoint(checkpoint))
    whole = "\x03".join(pieces).encode("utf-8", "surrogatepass")
    return Fingerprint(count, hashlib.sha256(whole).hexdigest()[:32])


def _private(model: Any, name: str) -> Any:
    """A private attribute; pydantic's own way to it costs more than all the rest."""
    private = getattr(model, "__pydantic_private__", None)
    return getattr(model, name, None) if private is None else private.get(name)


def _checkpoint(content: Any) -> str:
    return f"\x04{field(content, 'id')}"


def _parts(content: Any) -> Iterator[str]:
    for part in parts_of(content):
        if not isinstance(part, str | dict) and _private(part, "_no_save"):
            continue
        text = part_text(part)
        yield f"\x05{text}" if text is not None else f"\x06{_dumped(part)}"


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
