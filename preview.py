"""What the next request of a session would send.

Built by the same function as a request, from the history as the host has stored
it. Invariants:

* Nothing is changed: no message, no remembered window, no state of a request.
* System prompt, begin-dialogs and tools are those of the last request. After a
  restart only their sizes are known.
* Everything that grows with the history runs in a thread.
* Equal input gives an equal answer, so one that nothing has changed is not built anew.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .bounded import BoundedMap
from .calibration import NOTHING
from .context_logic import Cost, Limits, Projection, build
from .conversation_state import Remembered, limits_of
from .host import Host
from .host_types import host_limit
from .message_text import Draft, field, part_text, parts_of, text_of
from .prompt_estimates import Estimate
from .request_flow import RequestFlow
from .request_record import SentHead, head_sizes
from .run_usage import sample_of
from .sections import oversized
from .storage import Session
from .tokens import TokenCounter
from .topics import StoredTopic
from .watermark import Zones, without_checkpoints, zones

ALL = 1_000_000
# Of the messages that are left out, about as many are counted.
SAMPLE = 200
# What a message costs beside its text, in characters.
FRAMING = 8
# Answers that are kept: an operator goes to and fro between a few chats.
KEPT, KEPT_SECONDS = 4, 600


@dataclass(frozen=True, slots=True)
class _Basis:
    """What a preview is built from."""

    session: Session
    history: list[dict[str, Any]]
    limits: Limits
    estimate: Estimate
    remembered: Remembered
    topic: StoredTopic | None
    head: SentHead
    covered: int

    @property
    def extra_tokens(self) -> int:
        """Tokens beside the messages that are at hand."""
        head = self.head
        if not head.messages and head.sizes:
            return sum(head.sizes.values())
        # The message to come is taken to be as long as the last one.
        return self.estimate.tokens(head.beside) + head.sizes.get("current", 0)


def kept_answers() -> BoundedMap:
    """What ``preview`` keeps by session."""
    return BoundedMap(KEPT, KEPT_SECONDS)


async def preview(
    flow: RequestFlow, session: Session, limit: int = ALL, kept: BoundedMap | None = None
) -> dict[str, Any]:
    """The next request as the page shows it.

    Args:
        flow: The running instance's requests.
        session: The session as stored.
        limit: How many messages of the window, the newest, are in the answer.
        kept: The last answers, see ``kept_answers``.
    """
    host = flow.host
    if host.missing_features or host.remote_agent(session.session_id):
        reason = "host_features" if host.missing_features else "remote_agent"
        return _nothing(session, reason, await _last_request(flow, session))
    basis = await _basis(flow, session)
    asked = (basis, limit, flow.tokens.ready)
    known, answer = (kept or {}).get(session.session_id, (None, None))
    if known != asked:
        answer = await asyncio.to_thread(_built, host, flow.tokens, basis, limit)
        if kept is not None:
            kept[session.session_id] = (asked, answer)
    return answer


async def _basis(flow: RequestFlow, session: Session) -> _Basis:
    host, settings = flow.host, flow.settings
    conversation_id, history = await host.load_history(session.session_id)
    providers = await host.session_providers(session.session_id)
    values = without_checkpoints(history)
    head = await _last_head(flow, session)
    sample = sample_of(flow.tokens, [*head.messages, *values], head.beside)
    estimate = await flow.estimates.estimate(providers, conversation_id, sample)
    remembered = await flow.conversations.of(session, conversation_id, values)
    limits = limits_of(session, settings, host_limit(providers), estimate)
    topic = await flow.conversations.topics.of(conversation_id) if conversation_id else None
    covered = await flow.conversations.covered(session.session_id, conversation_id, values)
    return _Basis(session, values, limits, estimate, remembered, topic, head, covered)


async def _last_head(flow: RequestFlow, session: Session) -> SentHead:
    """The head of the last request; of one before a restart only its sizes."""
    head = flow.heads.get(session.session_id)
    if head is not None:
        return head
    record = await _newest_record(flow, session)
    if record is None:
        return SentHead([], NOTHING, {}, 0)
    return SentHead([], NOTHING, head_sizes(record.sections), record.time)


async def _newest_record(flow: RequestFlow, session: Session) -> Any:
    return next(iter(await flow.log.newest(session.session_id, 1)), None)


async def _last_request(flow: RequestFlow, session: Session) -> int | None:
    return (await _last_head(flow, session)).at or None


def _nothing(session: Session, reason: str, as_of: int | None) -> dict[str, Any]:
    return {
        "budget": session.recent_context_token_budget,
        "sections": [],
        "messages": [],
        "messages_total": 0,
        "left_out": {"turns": 0, "messages": 0, "tokens": 0, "reason": reason},
        "zones": asdict(Zones(0, 0, 0, 0)),
        "first_turn": 0,
        "as_of": as_of,
        "topic": None,
        "warnings": [],
    }


class _Messages:
    """Stored messages, made into the host's own only where that is needed.

    A long chat costs what its window costs, not what all of it would.
    """

    def __init__(self, host: Host, basis: _Basis) -> None:
        for_host = basis.limits.host_limit is not None
        self._measured = host.measured_by(basis.estimate, for_host=for_host)
        doubtful = [m for m in basis.history if not _plain(m)]
        bound = host.bound(doubtful)
        self.readable = bound is not None
        self._bound = dict(zip(map(id, doubtful), bound or (), strict=False))

    def measure(self, message: Any) -> Cost:
        """Size of a stored or of a host's message."""
        # Stored messages live as long as this object: their ids are no one else's.
        return self._measured(self._bound.get(id(message), message))


def _plain(message: dict[str, Any]) -> bool:
    """Whether the host can load a message for sure, without trying."""
    if len(message) != 2 or message.get("role") not in ("user", "assistant"):
        return False
    content = message.get("content")
    if isinstance(content, list):
        return bool(content) and all(map(_plain_part, content))
    return isinstance(content, str)


def _plain_part(part: Any) -> bool:
    if not isinstance(part, dict) or len(part) != 2:
        return False
    return part.get("type") == "text" and isinstance(part.get("text"), str)


def _built(host: Host, tokens: TokenCounter, basis: _Basis, limit: int) -> dict[str, Any]:
    session, history, messages = basis.session, basis.history, _Messages(host, basis)
    if not messages.readable:
        return _nothing(session, "unreadable", basis.head.at or None)
    # The message to come ends the window, as the current one does in a request.
    coming = host.make_message(Draft("user", ""))
    projection = build(
        [*basis.head.messages, *history, coming],
        fixed_memory=session.fixed_memory,
        summary=session.summary,
        limits=basis.limits,
        mark=basis.remembered.mark,
        covered=basis.remembered.covered,
        topic=basis.remembered.topic,
        tool_tokens=basis.extra_tokens,
        measure=messages.measure,
        make_message=host.make_message,
    )
    report, kinds = projection.report, _kinds(projection)
    left_out = history[slice(*report.left_out)]
    return {
        "budget": report.budget,
        "sections": _sections(projection, basis),
        "messages": [_shown(m, kind, messages) for m, kind in _newest(kinds, limit)],
        "messages_total": len(kinds),
        "left_out": {
            "turns": report.left_out_turns,
            "messages": len(left_out),
            "tokens": _about(left_out, tokens),
            "reason": _reason(projection, basis) if left_out else "",
        },
        "zones": asdict(_zones(projection, basis)),
        "first_turn": report.first_turn,
        "as_of": basis.head.at or None,
        "topic": basis.topic and {"source": basis.topic.source, "at": basis.topic.created_at},
        "warnings": oversized(report.sections, report.budget),
    }


def _about(messages: Sequence[dict[str, Any]], tokens: TokenCounter) -> int:
    """Tokens of messages; of many, those of a sample, scaled by their length."""
    sample = messages[:: max(1, len(messages) // SAMPLE)]
    counted = tokens.count_messages(sample)
    if len(sample) == len(messages):
        return counted
    lengths = [sum(map(_length, some)) for some in (messages, sample)]
    return round(counted * lengths[0] / max(1, lengths[1]))


def _length(message: dict[str, Any]) -> int:
    content = message.get("content")
    if isinstance(content, str):
        length = len(content)
    else:
        length = sum(len(part_text(part) or "") for part in parts_of(content))
    return FRAMING + length + len(str(message.get("tool_calls") or ""))


def _zones(projection: Projection, basis: _Basis) -> Zones:
    first_end, window_start = projection.report.left_out
    return zones(len(basis.history), basis.covered, window_start, first_end)


def _sections(projection: Projection, basis: _Basis) -> list[dict[str, Any]]:
    sizes = projection.report.sections | basis.head.sizes
    names = ("system", "fixed_memory", "summary", "tools", "begin_dialogs", "window")
    sizes["reserve"] = basis.limits.reply_reserve
    return [{"name": name, "tokens": sizes[name]} for name in (*names, "reserve")]


def _reason(projection: Projection, basis: _Basis) -> str:
    """Why turns are left out."""
    report, limits = projection.report, basis.limits
    if report.reason:
        return report.reason
    if report.first_turn >= report.total_turns:
        return "overrun"
    least = min(limits.usable, limits.host_limit or limits.usable)
    return "model_limit" if least < limits.budget else "budget"


def _kinds(projection: Projection) -> Sequence[tuple[Any, str]]:
    stored = set(map(id, projection.before))
    shown, window = [], False
    for message in projection.handed_over:
        if not window and field(message, "role") == "system":
            kind = "system"
        elif field(message, "_no_save"):
            kind = "begin_dialog"
        else:
            window = True
            kind = "history" if id(message) in stored else "lightened"
        shown.append((message, kind))
    return shown


def _newest(kinds: Sequence[tuple[Any, str]], limit: int) -> Sequence[tuple[Any, str]]:
    """The head and the newest messages after it."""
    head = sum(kind in ("system", "begin_dialog") for _, kind in kinds)
    return [*kinds[:head], *kinds[max(head, len(kinds) - limit) :]]


def _shown(message: Any, kind: str, messages: _Messages) -> dict[str, Any]:
    return {
        "role": field(message, "role"),
        "text": text_of(field(message, "content"), media=True),
        "tokens": messages.measure(message).tokens,
        "kind": kind,
    }
