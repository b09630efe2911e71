"""A strict check of the message rules of the OpenAI chat protocol.

Providers differ in which of these rules they enforce; a list that passes all of
them is accepted everywhere.

Invariants:
- Pure: no I/O, the messages are never changed.
- Every broken rule gives one line of text that names the message by index.
"""

import json
from itertools import pairwise

ROLES = {"system", "user", "assistant", "tool"}
PART_TYPES = {"text", "image_url", "input_audio", "file"}


def violations(messages: object) -> list[str]:
    """Returns one line of text per broken rule; an empty list is a valid request."""
    if not isinstance(messages, list) or not messages:
        return ["messages: not a list with at least one message"]
    if not all(isinstance(message, dict) for message in messages):
        return ["messages: an entry is not an object"]
    found = [line for i, m in enumerate(messages) for line in _message(i, m)]
    return found + _order(messages) + _tool_pairs(messages)


def _message(index: int, message: dict) -> list[str]:
    role = message.get("role")
    found = []
    if role not in ROLES:
        found.append(f"{index}: unknown role {role!r}")
    if role == "system" and index > 0:
        found.append(f"{index}: system message not in front")
    content = message.get("content")
    empty = _is_empty(content)
    if role == "user" and empty:
        found.append(f"{index}: empty user message")
    if role == "assistant" and empty and not message.get("tool_calls"):
        found.append(f"{index}: empty assistant message")
    found += _parts(index, content)
    if _has_lone_surrogate(message):
        found.append(f"{index}: lone surrogate")
    return found + _calls(index, message)


def _parts(index: int, content: object) -> list[str]:
    if not isinstance(content, list):
        return []
    kinds = [part.get("type") if isinstance(part, dict) else None for part in content]
    bad = [kind for kind in kinds if kind not in PART_TYPES]
    return [f"{index}: unknown content part {kind!r}" for kind in bad]


def _calls(index: int, message: dict) -> list[str]:
    calls = message.get("tool_calls")
    if calls is None:
        return []
    if message.get("role") != "assistant" or not calls:
        return [f"{index}: tool_calls empty or not of an assistant"]
    found = []
    for call in calls:
        try:
            json.loads(call["function"]["arguments"])
            if not call["id"] or not call["function"]["name"]:
                raise ValueError
        except (KeyError, TypeError, ValueError):
            found.append(f"{index}: malformed tool call")
    return found


def _is_empty(content: object) -> bool:
    if isinstance(content, str):
        return not content.strip()
    if not isinstance(content, list):
        return True
    return not any(
        isinstance(part, dict) and (part.get("type") != "text" or (part.get("text") or "").strip())
        for part in content
    )


def _has_lone_surrogate(value: object) -> bool:
    text = json.dumps(value, ensure_ascii=False)
    return any("\ud800" <= char <= "\udfff" for char in text)


def _order(messages: list[dict]) -> list[str]:
    roles = [message.get("role") for message in messages]
    talk = [(i, role) for i, role in enumerate(roles) if role != "system"]
    if not talk:
        return ["no message besides the system message"]
    found = []
    if talk[0][1] != "user":
        found.append(f"{talk[0][0]}: first message is {talk[0][1]}, not user")
    for (_, before), (index, role) in pairwise(talk):
        if before == role and role in ("user", "assistant"):
            found.append(f"{index}: two {role} messages in a row")
    return found


def _tool_pairs(messages: list[dict]) -> list[str]:
    found: list[str] = []
    pending: set[str] = set()
    for index, message in enumerate(messages):
        if message.get("role") == "tool":
            call_id = message.get("tool_call_id")
            if call_id not in pending:
                found.append(f"{index}: tool result without its call")
            pending.discard(call_id)
            continue
        if pending:
            found.append(f"{index}: tool calls before it have no result")
        calls = message.get("tool_calls") or []
        pending = {call.get("id") for call in calls if isinstance(call, dict)}
    if pending:
        found.append("end: tool calls have no result")
    return found
