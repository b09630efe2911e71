"""A stored message as a row of the archive, and what a conversation's change means for its rows.

Pure: no I/O and no clock. Invariants:

* Equal messages have equal hashes, whatever the host adds to them when it stores
  them again; checkpoints are never archived.
* ``content`` gives back the message exactly, except for inline media, which stand
  there as the placeholder that also stands in ``text``.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import SequenceMatcher
from itertools import accumulate
from typing import Any

from .fingerprint import without_nothing
from .message_text import clean_text, media_kind, part_text, parts_of, tool_calls_of

_HASH_LENGTH = 32
# Bytes of a forgotten message's hash: 60 KB for 10,000 of them.
_SHORT = 6
# Steps of a comparison, some tenths of a second: it runs in a thread that nothing can end.
_WORK = 3_000_000
# A note's zone may be another than it seems.
_DAY = 86_400
_MEDIA_HASH_LENGTH = 12
# Shorter strings are addresses or file names and no media.
_INLINE_LENGTH = 200
_INLINE = re.compile(r"(?:data:(image|audio|video|application)/|base64://)", re.IGNORECASE)
_REMINDER = re.compile(r"<system_reminder>(.*?)(?:</system_reminder>|\Z)", re.DOTALL)
_NICKNAME = re.compile(r"User ID: [^\n]*?, Nickname: ([^\n]*)")
_DATETIME = re.compile(r"Current datetime: (\d{4}-\d\d-\d\d \d\d:\d\d) \(([^)]*)\)")

_CJK = re.compile("[\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]")
_LATIN = re.compile("[A-Za-z\u00c0-\u024f]")
_PUNCTUATION = re.compile(r"[\x21-\x40\x5b-\x60\x7b-\x7e]")


@dataclass(frozen=True, slots=True)
class ArchivedMessage:
    """What the archive keeps of one message.

    Attributes:
        role: ``user``, ``assistant``, ``tool`` or ``system``.
        sender: Name of the person, or of the tool; empty if not known.
        time: Unix seconds.
        text: All readable text, whole, without the host's reminders.
        content: The message as JSON.
        content_hash: Hash of the message with its media.
        token_classes: Characters that are CJK, Latin, punctuation or digits, other.
    """

    role: str
    sender: str
    time: int
    text: str
    content: str
    content_hash: str
    token_classes: str


@dataclass(frozen=True, slots=True)
class Turn:
    """What is known of the messages that a request has added.

    Attributes:
        start: Messages of the conversation before them.
        time: Unix seconds.
        sender: Name of the user.
    """

    start: int
    time: int
    sender: str


@dataclass(frozen=True, slots=True)
class Times:
    """When some messages of a conversation can have been said, in unix seconds.

    Attributes:
        earliest: Time of the message in front of them.
        default: For messages whose time cannot be known.
        latest: When the conversation was changed last.
    """

    earliest: int
    default: int
    latest: float


@dataclass(frozen=True, slots=True)
class Original:
    """A row whose message was brought back as a message of a new conversation.

    Attributes:
        id: Of the row.
        time: Unix seconds.
    """

    id: int
    role: str
    sender: str
    time: int
    text: str


def content_hash(message: dict[str, Any]) -> str:
    """Hash of a stored message: equal for equal content, with or without empty fields."""
    canonical = json.dumps(without_nothing(message), sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:_HASH_LENGTH]


def short_hash(digest: str) -> str:
    """What is kept of a ``content_hash`` of a message that is not archived."""
    return digest[: 2 * _SHORT]


def packed(hashes: Sequence[str]) -> bytes:
    """Hashes as they are stored, short."""
    return bytes.fromhex("".join(map(short_hash, hashes)))


def unpacked(stored: bytes) -> list[str]:
    """The short hashes that were stored."""
    return [stored[i : i + _SHORT].hex() for i in range(0, len(stored), _SHORT)]


def archived(
    messages: Sequence[dict[str, Any]],
    start: int,
    end: int,
    times: Times,
    turn: Turn | None,
) -> list[ArchivedMessage]:
    """Rows for some messages of a conversation.

    A message whose time cannot be known was said after the one before it, and not after
    the next one whose time is known.

    Args:
        messages: The whole conversation without checkpoints.
        start: The first message that becomes a row.
        end: Behind the last one.
        times: When they can have been said.
        turn: What is known of the newest messages.
    """
    rows: list[ArchivedMessage] = []
    names = _tool_names(messages, start, end)
    new = len(messages) if turn is None else turn.start
    told = [_told(messages[index], times.latest) for index in range(start, min(end, new))]
    if turn is not None:
        told += [(turn.time, turn.sender)] * (end - start - len(told))
    first = next((said_at for said_at, _ in told if said_at), times.default)
    time = max(times.earliest, min(times.default, first))
    for index, (said_at, sender) in enumerate(told, start):
        time = max(time, said_at) if index < new else said_at
        rows.append(_row(messages[index], time, sender, names))
    return rows


def _row(message: dict[str, Any], time: int, sender: str, names: dict[str, str]) -> ArchivedMessage:
    role = clean_text(str(message.get("role") or ""))
    text = readable_text(message)
    if role == "tool":
        sender = names.get(str(message.get("tool_call_id") or ""), "")
    elif role != "user":
        sender = ""
    return ArchivedMessage(
        role=role,
        sender=clean_text(sender),
        time=time,
        text=text,
        content=json.dumps(_without_media(message), ensure_ascii=True),
        content_hash=content_hash(message),
        token_classes=json.dumps(_classes(text)),
    )


def _tool_names(messages: Sequence[dict[str, Any]], start: int, end: int) -> dict[str, str]:
    """Tool names by call id; a result's call may stand before ``start``."""
    first = start
    while first > 0 and messages[first].get("role") == "tool":
        first -= 1
    return {
        call_id: name
        for index in range(first, end)
        for call_id, name, _ in tool_calls_of(messages[index])
    }


def readable_text(message: dict[str, Any]) -> str:
    """All readable text of a message; media are placeholders with their hash."""
    lines = []
    for part in parts_of(message.get("content")):
        text = part_text(part)
        if text is None and media_kind(part):
            text = _placeholder(media_kind(part), _source(part))
        if text:
            lines.append(text)
    text = "\n".join(lines)
    if message.get("role") == "user":
        text = _REMINDER.sub("", text).strip()
    calls = [f"[工具调用 {name}] {call}".strip() for _, name, call in tool_calls_of(message)]
    return clean_text("\n".join(filter(None, [text, *calls])))


def _placeholder(kind: str | None, source: str) -> str:
    digest = hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest()
    return f"[{'语音' if kind == 'audio' else '图片'} {digest[:_MEDIA_HASH_LENGTH]}]"


def _source(part: Any) -> str:
    """What identifies a media part: its address or its data."""
    for value in part.values() if isinstance(part, dict) else ():
        found = value.get("url") or value.get("data") if isinstance(value, dict) else None
        if isinstance(found, str):
            return found
    return json.dumps(part, sort_keys=True, default=str)


def _without_media(value: Any) -> Any:
    """A JSON value in which inline media are placeholders."""
    if isinstance(value, dict):
        return {key: _without_media(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_media(item) for item in value]
    if isinstance(value, str) and len(value) > _INLINE_LENGTH and (found := _INLINE.match(value)):
        return _placeholder("audio" if (found[1] or "").lower() == "audio" else "image", value)
    return value


def _told(message: dict[str, Any], latest: float) -> tuple[int, str]:
    """Time and sender as the host's own note in a user message gives them; 0 and empty if not.

    The host's note is the last one: what stands before it may be a person's forgery.
    """
    if message.get("role") != "user":
        return 0, ""
    notes = "\n".join(
        found[1]
        for part in parts_of(message.get("content"))
        for found in _REMINDER.finditer(part_text(part) or "")
    )
    nicknames, moments = _NICKNAME.findall(notes), _DATETIME.findall(notes)
    time = _unix(*moments[-1]) if moments else 0
    return time if 0 < time <= latest + _DAY else 0, nicknames[-1].strip() if nicknames else ""


def _unix(moment: str, zone: str) -> int:
    try:
        told = datetime.strptime(moment, "%Y-%m-%d %H:%M")
        # The note names its zone only by a short name; any other than UTC is taken as local.
        local = told.replace(tzinfo=UTC) if zone == "UTC" else told.astimezone()
    except (ValueError, OverflowError):
        return 0
    return int(local.timestamp())


def _classes(text: str) -> list[int]:
    counts = [len(pattern.findall(text)) for pattern in (_CJK, _LATIN, _PUNCTUATION)]
    return [*counts, len(text) - sum(counts)]


@dataclass(frozen=True, slots=True)
class Insertion:
    """Messages ``start`` to ``end`` of a conversation that have no row yet.

    Attributes:
        before: Position in the old rows of the row they stand before; None: at the end.
    """

    start: int
    end: int
    before: int | None


@dataclass(frozen=True, slots=True)
class Plan:
    """How the rows of a conversation become what the host holds.

    Attributes:
        gone: Positions in the old rows that the host no longer holds.
        insertions: What is new, in order.
    """

    gone: list[int]
    insertions: list[Insertion]


def plan_changes(old: Sequence[str], new: Sequence[str]) -> Plan:
    """Compares the hashes of the rows that were in the host with those that are."""
    start = _common(old, new)
    tail = _common(old[start:][::-1], new[start:][::-1])
    old_end, new_end = len(old) - tail, len(new) - tail
    gone: list[int] = []
    insertions: list[Insertion] = []
    for old_from, old_to, new_from, new_to in _differences(old[start:old_end], new[start:new_end]):
        gone += range(start + old_from, start + old_to)
        if new_from < new_to:
            behind = start + old_to
            before = behind if behind < len(old) else None
            insertions.append(Insertion(start + new_from, start + new_to, before))
    return Plan(gone, insertions)


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    return next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )


def still_there(forgotten: Sequence[str], rows: Sequence[str], new: Sequence[str]) -> list[int]:
    """Which messages of a conversation are forgotten ones.

    Args:
        forgotten: Short hashes of the forgotten messages.
        rows: Hashes of the archived ones.
        new: Hashes of those messages that can be either.

    Returns:
        Their positions in ``new``, in order.
    """
    if not forgotten:
        return []
    old, now = [*forgotten, *map(short_hash, rows)], [short_hash(h) for h in new]
    plan = plan_changes(old, now)
    added = [index for found in plan.insertions for index in range(found.start, found.end)]
    stayed = without(range(len(old)), plan.gone)
    pairs = list(zip(stayed, without(range(len(now)), added), strict=True))
    if 2 * len(pairs) <= min(len(old), len(now)):
        # Another conversation, in which some words are the same.
        return list(range(_common(forgotten, now)))
    return [place for index, place in pairs if index < len(forgotten)]


def without[T](items: Sequence[T], places: Iterable[int]) -> list[T]:
    """The items that are not at these places."""
    left_out = set(places)
    return [item for place, item in enumerate(items) if place not in left_out]


def _differences(old: Sequence[str], new: Sequence[str]) -> Iterator[tuple[int, int, int, int]]:
    """Where they differ, in order: the longest equal runs stay, as far as there is time.

    What is not compared within ``_WORK`` counts as replaced.
    """
    matcher = SequenceMatcher(None, old, new, autojunk=False)
    costs = _costs(matcher, old)
    if costs[-1] > _WORK // 2:
        # Entries that are everywhere only lengthen runs that others begin.
        matcher = SequenceMatcher(None, old, new, autojunk=True)
        costs = _costs(matcher, old)
    work, spans = _WORK, [(0, len(old), 0, len(new))]
    while spans:
        old_from, old_to, new_from, new_to = span = spans.pop()
        cost = costs[old_to] - costs[old_from]
        if old_from == old_to or new_from == new_to or cost > work:
            if old_from < old_to or new_from < new_to:
                yield span
            continue
        work -= cost
        at, new_at, size = matcher.find_longest_match(*span)
        if size:
            spans.append((at + size, old_to, new_at + size, new_to))
            spans.append((old_from, at, new_from, new_at))
        else:
            yield span


def _costs(matcher: SequenceMatcher[str], old: Sequence[str]) -> list[int]:
    """Steps that a search in the first n old entries takes, for each n."""
    found = matcher.b2j
    return list(accumulate((1 + len(found.get(entry, ())) for entry in old), initial=0))
