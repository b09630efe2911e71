"""What a compression reads: which messages, and in which steps.

Pure. Invariants:

* Every message that is read is in exactly one step, in order; a message that is
  too long for a step is split and each of its pieces is in exactly one.
* Steps end between turns. A turn that is too long for a step is split between its
  messages, and only a message that is too long is split itself.
* What counts as covered afterwards is what was read and what the summary so far
  covered, and nothing else.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .errors import CompressionRefused
from .message_text import TranscriptMessage, is_inside, transcript
from .watermark import Watermark, covered_messages, prefix_hash, without_checkpoints

# Fewer new messages than two turns would only wear the summary's text down.
MIN_NEW_MESSAGES = 4
# Number, role and line break around a message in a prompt, in tokens.
MESSAGE_FRAME = 8

Count = Callable[[str], int]
_BREAKS = (re.compile(r"\n"), re.compile(r"\s"), re.compile(r"[。！？；，.!?;,]"))


@dataclass(frozen=True, slots=True)
class Reading:
    """What one compression reads and covers.

    Attributes:
        conversation_id: The conversation it is about.
        messages: What the model has to read.
        covered: Messages the summary covers afterwards.
        prefix_hash: Hash of those messages.
    """

    conversation_id: str
    messages: list[TranscriptMessage]
    covered: int
    prefix_hash: str


def reading(
    conversation_id: str | None,
    history: Sequence[Any],
    watermark: Watermark | None,
    *,
    rebuild: bool = False,
    until: int | None = None,
    least_new: int = MIN_NEW_MESSAGES,
) -> Reading:
    """What the next compression of a conversation reads.

    Args:
        conversation_id: The present conversation.
        history: Its stored messages.
        watermark: What the summary so far covers.
        rebuild: Whether everything is read again.
        until: Messages, without checkpoints, up to which it reads; None: all.
        least_new: Readable messages that must have come since the summary so far.

    Raises:
        CompressionRefused: There is nothing, or too little, to read.
    """
    messages = without_checkpoints(history)
    known = 0 if rebuild else covered_messages(watermark, conversation_id, messages)
    end = len(messages) if until is None else min(until, len(messages))
    fresh = transcript(messages[known:end])
    if known and len(fresh) < least_new:
        raise CompressionRefused("too_few_new", count=len(fresh), least=least_new)
    if conversation_id is None or not fresh:
        raise CompressionRefused("nothing_to_compress")
    return Reading(conversation_id, fresh, end, prefix_hash(messages[:end]))


def steps(
    messages: Sequence[TranscriptMessage], room: int, count: Count
) -> list[list[TranscriptMessage]]:
    """Divides messages into steps.

    Args:
        messages: What has to be read.
        room: Tokens of messages that one step may hold; positive.
        count: Tokens of a text.
    """
    done: list[list[TranscriptMessage]] = []
    step: list[TranscriptMessage] = []
    used = 0
    for unit in _units(messages, room, count):
        size = _size(unit, count)
        if step and used + size > room:
            done.append(step)
            step, used = [], 0
        step.extend(unit)
        used += size
    return [*done, step] if step else done


def _size(messages: Sequence[TranscriptMessage], count: Count) -> int:
    return sum(count(message.text) + MESSAGE_FRAME for message in messages)


def _units(
    messages: Sequence[TranscriptMessage], room: int, count: Count
) -> Iterator[list[TranscriptMessage]]:
    """What has to stay together: turns, or the messages or pieces of long ones."""
    for turn in _turns(messages):
        if _size(turn, count) <= room:
            yield turn
            continue
        for message in turn:
            for piece in _pieces(message, room, count):
                yield [piece]


def _turns(messages: Sequence[TranscriptMessage]) -> Iterator[list[TranscriptMessage]]:
    turn: list[TranscriptMessage] = []
    for message in messages:
        if message.role == "user" and turn:
            yield turn
            turn = []
        turn.append(message)
    if turn:
        yield turn


def _pieces(message: TranscriptMessage, room: int, count: Count) -> list[TranscriptMessage]:
    if _size([message], count) <= room:
        return [message]
    texts = _split_text(message.text, max(1, room - 2 * MESSAGE_FRAME), count)
    return [
        TranscriptMessage(message.index, message.role, f"({number}/{len(texts)}) {text}")
        for number, text in enumerate(texts, start=1)
    ]


def _split_text(text: str, room: int, count: Count) -> list[str]:
    if len(text) < 2 or count(text) <= room:
        return [text]
    cut = _cut_near(text, len(text) // 2)
    return [*_split_text(text[:cut], room, count), *_split_text(text[cut:], room, count)]


def _cut_near(text: str, middle: int) -> int:
    """A place near the middle where a text may be cut: a line, a word, a sentence."""
    start, end = max(1, middle - len(text) // 8), middle + len(text) // 8
    for pattern in _BREAKS:
        if found := pattern.search(text, middle, end) or pattern.search(text, start, middle):
            return found.end() if found.end() < len(text) else middle
    while middle < len(text) - 1 and is_inside(text, middle):
        middle += 1
    return middle
