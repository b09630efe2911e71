"""Histories to seed into a host, and comparisons that leave out what differs by itself.

Two runs of the same chat differ in ids of checkpoints and calls, in the host's
date line and in the names of gates; nothing else may differ.
"""

import json
import re

REMINDER = re.compile(r"<system_reminder>.*?</system_reminder>", re.S)
FILLER = "the weather was mild and the train left on time; "


def text_turn(number: int, size: int = 400) -> list[dict]:
    """A question and an answer of together about ``size`` characters."""
    half = max(0, size // 2 - 20)
    filler = (FILLER * (half // len(FILLER) + 1))[:half]
    return [
        {"role": "user", "content": f"question {number}: {filler}"},
        {"role": "assistant", "content": f"answer {number}: {filler}"},
    ]


def tool_turn(number: int, size: int = 400) -> list[dict]:
    """A turn with one tool call, stored in the host's form, and a checkpoint behind it."""
    call = {
        "type": "function",
        "id": f"seed_{number}",
        "function": {"name": "lookup", "arguments": json.dumps({"text": f"n{number}"})},
    }
    user, answer = text_turn(number, size)
    return [
        {"role": "user", "content": [{"type": "text", "text": user["content"]}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": f"found n{number}", "tool_call_id": f"seed_{number}"},
        {"role": "assistant", "content": [{"type": "text", "text": answer["content"]}]},
        {"role": "_checkpoint", "content": {"id": f"checkpoint-{number}"}},
    ]


def mixed_history(turns: int, size: int = 400) -> list[dict]:
    """Turns of which every fourth has a tool call and a checkpoint."""
    found: list[dict] = []
    for number in range(1, turns + 1):
        make = tool_turn if number % 4 == 0 else text_turn
        found += make(number, size)
    return found


def comparable(messages: list[dict]) -> list[dict]:
    """The messages without everything that differs between two equal runs."""
    names: dict[str, str] = {}
    result = []
    for message in messages:
        if message.get("role") == "_checkpoint":
            result.append({"role": "_checkpoint"})
            continue
        text = json.dumps(_without_reminder(message), sort_keys=True)
        text = re.sub(r"#gate:[\w-]+", "#gate", text)
        for call_id in re.findall(r"call_p\d+_\d+", text):
            names.setdefault(call_id, f"call-{len(names) + 1}")
            text = re.sub(rf"\b{call_id}\b", names[call_id], text)
        result.append(json.loads(text))
    return result


def _without_reminder(message: dict) -> dict:
    content = message.get("content")
    if not isinstance(content, list):
        return message
    parts = [p for p in content if not REMINDER.fullmatch(str(p.get("text", "")).strip())]
    return {**message, "content": parts}


def brief(messages: list[dict]) -> str:
    """One short line per message, for failures."""
    lines = []
    for message in messages:
        text = json.dumps(message.get("content"), ensure_ascii=False)
        calls = len(message.get("tool_calls") or [])
        lines.append(f"{message.get('role')}{f' [{calls} calls]' if calls else ''}: {text[:90]}")
    return "\n".join(lines)
