"""Small message objects in the shape of the host's, for tests of the pure core."""

from dataclasses import dataclass
from typing import Any

from astrbot_plugin_context_manager.context_logic import Cost, Limits, build
from astrbot_plugin_context_manager.message_text import part_text, parts_of, tool_calls_of


@dataclass(eq=False)
class Msg:
    role: str
    content: Any = None
    tool_calls: Any = None
    tool_call_id: str | None = None
    _no_save: bool = False


def user(text: Any = "q") -> Msg:
    return Msg("user", text)


def assistant(text: Any = "a", **more: Any) -> Msg:
    return Msg("assistant", text, **more)


def call(*ids: str, name: str = "look", arguments: str = "{}") -> list[dict[str, Any]]:
    return [
        {"id": i, "type": "function", "function": {"name": name, "arguments": arguments}}
        for i in ids
    ]


def tool(call_id: str, text: Any = "found") -> Msg:
    return Msg("tool", text, tool_call_id=call_id)


def image(url: str = "data:image/png;base64,AAAA") -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def turns(count: int, size: int = 10) -> list[Msg]:
    result = []
    for number in range(count):
        result += [
            user(f"q{number:04d}".ljust(size, "x")),
            assistant(f"a{number:04d}".ljust(size, "y")),
        ]
    return result


def size_of(message: Any) -> Cost:
    """One token a character, so that a test can count by hand."""
    texts = [part_text(part) or "" for part in parts_of(message.content)]
    texts += [arguments for _, _, arguments in tool_calls_of(message)]
    total = sum(map(len, texts))
    return Cost(total, total)


def build_request(messages: list[Msg], *, budget: int = 100_000, **options: Any):
    limits = Limits(budget, **{k: options.pop(k) for k in list(options) if k in Limits.__slots__})
    arguments = {
        "fixed_memory": "",
        "summary": "",
        "mark": None,
        "tool_tokens": 0,
        "measure": size_of,
        "make_message": lambda draft: Msg(draft.role, draft.content),
    }
    return build(messages, limits=limits, **(arguments | options))


def texts(messages: list[Any]) -> list[tuple[str, Any]]:
    return [(m.role, m.content) for m in messages]
