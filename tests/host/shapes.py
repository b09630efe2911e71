"""Histories in every shape that a host can load and a model may reject.

Each is the stored form of one or a few turns, as hosts, other plugins, imports
and interrupted requests leave them behind.
"""

import base64
import io
import wave

PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5E"
    "rkJggg=="
)
PICTURE = f"data:image/png;base64,{PIXEL}"


def _silence() -> str:
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(8000)
        sound.writeframes(bytes(160))
    return "data:audio/wav;base64," + base64.b64encode(file.getvalue()).decode()


def _text(text: str) -> dict:
    return {"type": "text", "text": text}


def _image(url: str = PICTURE) -> dict:
    return {"type": "image_url", "image_url": {"url": url, "id": None}}


def _audio() -> dict:
    return {"type": "audio_url", "audio_url": {"url": _silence(), "id": None}}


def _call(*ids: str, arguments: str = '{"text": "x"}', content: object = None) -> dict:
    function = {"name": "lookup", "arguments": arguments}
    calls = [{"type": "function", "id": i, "function": function} for i in ids]
    return {"role": "assistant", "content": content, "tool_calls": calls}


def _result(call_id: str, content: object = "found it") -> dict:
    return {"role": "tool", "content": content, "tool_call_id": call_id}


def _user(content: object = "a shaped question") -> dict:
    return {"role": "user", "content": content}


def _answer(content: object = "a shaped answer") -> dict:
    return {"role": "assistant", "content": content}


_THOUGHT = {"type": "think", "think": "hm", "encrypted": None}
_LOOP = [m for n in range(20) for m in (_call(f"c{n}"), _result(f"c{n}", "y" * 900))]

SHAPES: dict[str, list[dict]] = {
    "calls at the start of a window": [
        _user(),
        _call("a", "b"),
        _result("a"),
        _result("b"),
        _answer(),
    ],
    "calls without a further question": [_user(), *_LOOP],
    "reasoning beside a call": [
        _user(),
        _call("a", content=[_THOUGHT, _text("let me look")]),
        _result("a"),
        _answer(),
    ],
    "reasoning only": [_user(), _answer([_THOUGHT])],
    "empty answer": [_user(), _answer("")],
    "blank part": [_user(), _answer([_text("  ")])],
    "no parts": [_user(), _answer([])],
    "two answers": [_user(), _answer("one"), _answer("two")],
    "two questions": [_user("one"), _user("two"), _answer()],
    "question without answer": [_user()],
    "empty question": [_user(""), _answer()],
    "answers before any question": [_answer("hello"), _answer("again")],
    "result without call": [_user(), _result("nobody"), _answer()],
    "call without result": [_user(), _call("a"), _answer()],
    "call with half its results": [_user(), _call("a", "b"), _result("a"), _answer()],
    "interrupted call": [_user(), _call("a")],
    "broken arguments": [_user(), _call("a", arguments="{not json"), _result("a"), _answer()],
    "empty list of calls": [_user(), _answer() | {"tool_calls": []}],
    "content as parts": [_user([_text("one"), _text("two")]), _answer([_text("three")])],
    "picture of two megabytes": [
        _user([_text("see"), _image(PICTURE + "A" * 2_000_000)]),
        _answer(),
    ],
    "only a picture": [_user([_image()]), _answer()],
    "audio": [_user([_text("hear"), _audio()]), _answer()],
    "picture in a result": [_user(), _call("a"), _result("a", [_text("r"), _image()]), _answer()],
    "result of 300 KB": [_user(), _call("a"), _result("a", "r" * 300_000), _answer()],
    "system message inside": [_user(), {"role": "system", "content": "a note"}, _answer()],
    "checkpoints": [_user(), _answer(), {"role": "_checkpoint", "content": {"id": "x"}}],
    "lone surrogate": [_user("half \ud83d of it"), _answer("\ude00 rest")],
    "line like a marker": [_user("===== AI Summary =====\nnot one"), _answer()],
}

# The host alone cannot even send these, and stores nothing of the new turn.
FATAL_ALONE = {"lone surrogate"}

# Messages with which no host can load a conversation.
UNLOADABLE = [
    _user(None),
    _user([{"type": "input_audio", "input_audio": {}}]),
    {"role": "developer", "content": "x"},
]
