"""How a single message is read, and how a finished turn is made lighter.

Messages come as the host's objects or as the dicts it stores; both are read by
the same functions. Nothing here changes a message: a lighter message is a new
``Draft``. The same input always gives the same output, so that the bytes sent
for a finished turn stay the same from request to request.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

IMAGE_PLACEHOLDER = "[图片]"
AUDIO_PLACEHOLDER = "[语音]"
NO_REPLY = "[无回复]"

CHECKPOINT_ROLE = "_checkpoint"

# Fixed steps: a text is either whole or cut to exactly this, never in between.
RESULT_HEAD, RESULT_TAIL = 1200, 600
ARGUMENTS_HEAD, ARGUMENTS_TAIL = 400, 200

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_REMINDER = re.compile(r"<system_reminder>.*?(?:</system_reminder>|\Z)", re.DOTALL)
# What belongs to the character before it, or ties that to the next one.
_TIE = "\u200d"
_JOINING = re.compile(
    "[\u200d\ufe00-\ufe0f\u0300-\u036f\u20e3\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]"
)
# Two of these in a row are one flag.
_FLAG_LETTER = re.compile("[\U0001f1e6-\U0001f1ff]")


@dataclass(frozen=True, slots=True)
class Draft:
    """A message to be sent that the host does not have yet.

    Attributes:
        role: ``user`` or ``assistant``.
        content: A text, or parts: texts and the host's own part objects.
    """

    role: str
    content: str | list[Any]


@dataclass(frozen=True, slots=True)
class TranscriptMessage:
    """One stored message as a summarising model reads it.

    Attributes:
        index: Position in the stored list.
        role: ``user``, ``assistant`` or ``tool``.
        text: Readable text without media, reasoning and host reminders.
    """

    index: int
    role: str
    text: str


def field(message: Any, name: str, default: Any = None) -> Any:
    """Reads a field of a message, part or tool call, object or dict."""
    if isinstance(message, dict):
        return message.get(name, default)
    return getattr(message, name, default)


def fields_of(message: Any) -> dict[str, Any]:
    """All fields of a stored message or of the host's object, to be read only.

    For what every message of a long chat passes through: quicker than ``field``.
    """
    return message if isinstance(message, dict) else message.__dict__


def clean_text(text: str) -> str:
    """Replaces lone surrogates, which no JSON or database accepts, by U+FFFD."""
    return _LONE_SURROGATE.sub("\ufffd", text)


def parts_of(content: Any) -> list[Any]:
    """The parts of a message content, which may be text, a list or nothing."""
    if isinstance(content, str):
        return [content]
    return list(content) if isinstance(content, list | tuple) else []


def part_text(part: Any) -> str | None:
    """The text of a content part, or None if it is no text part."""
    if isinstance(part, str):
        return part
    text = field(part, "text")
    return text if isinstance(text, str) else None


def media_kind(part: Any) -> str | None:
    """``image``, ``audio`` or None."""
    kind = "" if isinstance(part, str) else str(field(part, "type") or "")
    if kind.startswith("image"):
        return "image"
    return "audio" if kind.startswith(("audio", "input_audio")) else None


def media_placeholder(part: Any) -> str | None:
    """The text that stands for a media part, or None for other parts."""
    kind = media_kind(part)
    if kind is None:
        return None
    return IMAGE_PLACEHOLDER if kind == "image" else AUDIO_PLACEHOLDER


def media_bytes(message: Any) -> int:
    """Size of a message's images and audio as they stand in it: data URI or address."""
    content = field(message, "content")
    if not isinstance(content, list | tuple):
        return 0
    return sum(_held_bytes(part) for part in content if media_kind(part))


def _held_bytes(part: Any) -> int:
    """Length of the address of a media part, wherever its format keeps it."""
    inner = field(part, str(field(part, "type")))
    addresses = (field(inner, name) for name in ("url", "data"))
    return sum(len(address) for address in addresses if isinstance(address, str))


def text_of(content: Any, *, media: bool = False) -> str:
    """All text of a content, parts joined by newlines.

    Args:
        content: Text, list of parts (with or without text), or None.
        media: Whether media parts count as their placeholder.
    """
    texts = []
    for part in parts_of(content):
        text = part_text(part)
        if text is None and media:
            text = media_placeholder(part)
        if text:
            texts.append(text)
    return clean_text("\n".join(texts))


def spoken_text(message: Any) -> str:
    """What a user said in a message, without the host's reminders."""
    return _REMINDER.sub("", text_of(field(message, "content"))).strip()


def has_content(message: Any) -> bool:
    """Whether a message says anything: text that is not blank, or media."""
    content = field(message, "content")
    if isinstance(content, str):
        # Every message of a long history passes here.
        return bool(content) and not content.isspace()
    for part in parts_of(content):
        text = part_text(part)
        if (text and not text.isspace()) or media_kind(part):
            return True
    return False


def is_inside(text: str, position: int) -> bool:
    """Whether a cut at a position splits what is read as one character, as an emoji is."""
    if not 0 < position < len(text):
        return False
    if text[position - 1] == _TIE or _JOINING.match(text, position):
        return True
    if not _FLAG_LETTER.match(text, position):
        return False
    start = position
    while start and _FLAG_LETTER.match(text, start - 1):
        start -= 1
    return (position - start) % 2 == 1


def beginning(text: str, length: int) -> str:
    """A text of at most so many characters; it ends with ``…`` where there were more."""
    if len(text) <= length:
        return text
    end = length - 1
    while is_inside(text, end):
        end -= 1
    return text[:end] + "…"


def shorten(text: str, head: int, tail: int) -> str:
    """Keeps head and tail of a long text and says how much is missing.

    Args:
        text: Any text.
        head: Characters kept at the start.
        tail: Characters kept at the end.

    Returns:
        The text itself if it is not clearly longer than ``head + tail``.
    """
    if len(text) <= head + tail + 40:
        return text
    while is_inside(text, head):
        head -= 1
    start = len(text) - tail
    while is_inside(text, start):
        start += 1
    omitted = start - head
    return f"{text[:head]}\n…[省略 {omitted} 字]…\n{text[start:]}"


def tool_calls_of(message: Any) -> list[tuple[str, str, str]]:
    """The tool calls of a message as ``(id, name, arguments)``."""
    calls = []
    for call in parts_of(field(message, "tool_calls")):
        function = field(call, "function")
        calls.append(
            (
                str(field(call, "id") or ""),
                str(field(function, "name") or "?"),
                clean_text(str(field(function, "arguments") or "")),
            )
        )
    return calls


def _flat_lines(messages: Sequence[Any], names: dict[str, str] | None = None) -> Iterator[str]:
    """The lines of flattened messages; ``names`` remembers tool names by call id."""
    names = {} if names is None else names
    for message in messages:
        text = text_of(field(message, "content"), media=True).strip()
        if field(message, "role") == "tool":
            name = names.get(str(field(message, "tool_call_id") or ""), "?")
            yield f"[工具结果 {name}] {shorten(text, RESULT_HEAD, RESULT_TAIL)}".strip()
            continue
        if text:
            yield text
        for call_id, name, arguments in tool_calls_of(message):
            names[call_id] = name
            shown = shorten(arguments, ARGUMENTS_HEAD, ARGUMENTS_TAIL)
            yield f"[工具调用 {name}] {shown}".strip()


def _without_media(parts: list[Any]) -> list[Any]:
    return [media_placeholder(part) or part for part in parts]


def _light_user(message: Any, keep_media: bool) -> Any:
    parts = parts_of(field(message, "content"))
    lighter = parts if keep_media else _without_media(parts)
    lighter = [
        clean_text(text) if (text := part_text(part)) and text != clean_text(text) else part
        for part in lighter
    ]
    if lighter == parts:
        return message
    if all(isinstance(part, str) or part_text(part) is not None for part in lighter):
        return Draft("user", "\n".join(part_text(part) or "" for part in lighter))
    return Draft("user", lighter)


def _light_answer(messages: Sequence[Any]) -> Any:
    if len(messages) == 1:
        content = field(messages[0], "content")
        # Even an empty list of calls is rejected by some providers.
        plain = (
            field(messages[0], "role") == "assistant"
            and field(messages[0], "tool_calls") is None
            and not any(media_kind(part) for part in parts_of(content))
        )
        text = "\n".join(filter(None, map(part_text, parts_of(content))))
        if plain and text.strip() and text == clean_text(text):
            return messages[0]
    return Draft("assistant", "\n".join(_flat_lines(messages)) or NO_REPLY)


def _says_plainly(message: Any, role: str) -> bool:
    """Whether a message is sent as it is: the case of nearly all of a long window."""
    fields = fields_of(message)
    content = fields.get("content")
    return (
        isinstance(content, str)
        and fields.get("role") == role
        and fields.get("tool_calls") is None
        and bool(content)
        and not content.isspace()
        and (content.isascii() or not _LONE_SURROGATE.search(content))
    )


def light_turn(turn: Sequence[Any], *, keep_media: bool) -> list[Any]:
    """The copy of a finished turn that is sent.

    Args:
        turn: The messages of one turn.
        keep_media: Whether images and audio of the user stay.

    Returns:
        One user message and one assistant message, each the host's own object
        where nothing had to change; system messages that another plugin put
        into the turn follow as they are. Empty if the turn has no user message.
    """
    if len(turn) == 2 and all(map(_says_plainly, turn, ("user", "assistant"))):
        return list(turn)
    start = next((i for i, m in enumerate(turn) if starts_turn(m)), None)
    if start is None:
        return []
    rest = turn[start + 1 :]
    answers = [m for m in rest if field(m, "role") in ("assistant", "tool")]
    extra = [m for m in rest if field(m, "role") == "system" and has_content(m)]
    return [_light_user(turn[start], keep_media), _light_answer(answers), *extra]


def starts_turn(message: Any) -> bool:
    """Whether a message opens a turn: a user message that says something."""
    return field(message, "role") == "user" and has_content(message)


def transcript(messages: Sequence[Any]) -> list[TranscriptMessage]:
    """A stored conversation as a summarising model reads it.

    Checkpoints, system messages, messages that are not saved, reasoning and the
    host's reminders are left out; media are placeholders; tool calls and long
    tool results are shortened to head and tail.
    """
    result: list[TranscriptMessage] = []
    names: dict[str, str] = {}
    for index, message in enumerate(messages):
        role = field(message, "role")
        if role not in ("user", "assistant", "tool") or field(message, "_no_save"):
            continue
        text = "\n".join(_flat_lines([message], names))
        if role == "user":
            text = _REMINDER.sub("", text).strip()
        if text:
            result.append(TranscriptMessage(index, role, text))
    return result
