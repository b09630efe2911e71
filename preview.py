"""What the next request of a session would send.

Built by the same function as a request, from the history as the host has stored
it. Invariants:

* Nothing is changed: no message, no remembered window, no state of a request.
* System prompt, begin-dialogs and tools are those of the last request. After a
  restart only their sizes are known.
* Everything that grows with the history runs in a thread.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .context_logic import Limits, Projection, WindowMark, build
from .host import Host
from .message_text import Draft, field, text_of
from .request_flow import RequestFlow
from .request_record import SentHead
from .storage import Session
from .tokens import TokenCounter
from .watermark import Zones, covered_messages, without_checkpoints, zones

ALL = 1_000_000
# Sections that do not depend on the history, as a record names them.
_HEAD_SECTIONS = ("system", "tools", "begin_dialogs")


@dataclass(frozen=True, slots=True)
class _Basis:
    """What a preview is built from."""

    session: Session
    history: list[dict[str, Any]]
    limits: Limits
    mark: WindowMark | None
    head: SentHead
    known_sizes: dict[str, int] | None
    covered: int

    @property
    def extra_tokens(self) -> int:
        """Tokens beside the messages that are at hand."""
        return sum(self.known_sizes.values()) if self.known_sizes else self.head.tool_tokens


async def preview(flow: RequestFlow, session: Session, limit: int = ALL) -> dict[str, Any]:
    """The next request as the page shows it.

    Args:
        flow: The running instance's requests.
        session: The session as stored.
        limit: How many messages of the window, the newest, are in the answer.
    """
    host = flow.host
    if host.missing_features or host.remote_agent(session.session_id):
        reason = "host_features" if host.missing_features else "remote_agent"
        return _nothing(session, reason, await _last_request(flow, session))
    basis = await _basis(flow, session)
    return await asyncio.to_thread(_built, host, flow.tokens, basis, limit)


async def _basis(flow: RequestFlow, session: Session) -> _Basis:
    host, settings = flow.host, flow.settings
    conversation_id, history = await host.load_history(session.session_id)
    provider = await host.current_chat_provider(session.session_id)
    limits = Limits(
        budget=session.recent_context_token_budget,
        host_limit=host.host_limit(provider),
        keep_ratio=session.window_keep_ratio,
        keep_media_turns=settings.keep_media_turns,
    )
    mark = await flow.window_of(conversation_id)
    head, sizes = await _last_head(flow, session)
    watermark = await flow.storage.latest_coverage(session.session_id) if flow.storage else None
    covered = await asyncio.to_thread(covered_messages, watermark, conversation_id, history)
    return _Basis(session, history, limits, mark, head, sizes, covered)


async def _last_head(flow: RequestFlow, session: Session) -> tuple[SentHead, dict[str, int] | None]:
    """The head of the last request, and its sizes if only they are known."""
    head = flow.heads.get(session.session_id)
    if head is not None:
        return head, None
    record = await _newest_record(flow, session)
    if record is None:
        return SentHead([], 0, 0), None
    sizes = {name: record.sections.get(name, 0) for name in _HEAD_SECTIONS}
    return SentHead([], 0, record.time), sizes


async def _newest_record(flow: RequestFlow, session: Session) -> Any:
    if flow.log is None:
        return None
    return next(iter(await flow.log.newest(session.session_id, 1)), None)


async def _last_request(flow: RequestFlow, session: Session) -> int | None:
    head, _ = await _last_head(flow, session)
    return head.at or None


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
    }


def _built(host: Host, tokens: TokenCounter, basis: _Basis, limit: int) -> dict[str, Any]:
    session, history = basis.session, host.bound(basis.history)
    if history is None:
        return _nothing(session, "unreadable", basis.head.at or None)
    # The message to come ends the window, as the current one does in a request.
    coming = host.make_message(Draft("user", ""))
    projection = build(
        [*basis.head.messages, *history, coming],
        fixed_memory=session.fixed_memory,
        summary=session.summary,
        limits=basis.limits,
        mark=basis.mark,
        tool_tokens=basis.extra_tokens,
        measure=host.measure,
        make_message=host.make_message,
    )
    report, kinds = projection.report, _kinds(projection)
    left_out = history[: report.left_out_messages]
    return {
        "budget": report.budget,
        "sections": _sections(projection, basis),
        "messages": [_shown(m, kind, host) for m, kind in _newest(kinds, limit)],
        "messages_total": len(kinds),
        "left_out": {
            "turns": report.left_out_turns,
            "messages": len(left_out),
            "tokens": tokens.count_messages(left_out),
            "reason": _reason(projection, basis) if left_out else "",
        },
        "zones": asdict(_zones(projection, basis)),
        "first_turn": report.first_turn,
        "as_of": basis.head.at or None,
    }


def _zones(projection: Projection, basis: _Basis) -> Zones:
    total = len(without_checkpoints(basis.history))
    return zones(total, basis.covered, projection.report.left_out_messages)


def _sections(projection: Projection, basis: _Basis) -> list[dict[str, Any]]:
    sizes = projection.report.sections | (basis.known_sizes or {})
    names = ("system", "fixed_memory", "summary", "tools", "begin_dialogs", "window")
    sizes["reserve"] = basis.limits.reply_reserve
    return [{"name": name, "tokens": sizes[name]} for name in (*names, "reserve")]


def _reason(projection: Projection, basis: _Basis) -> str:
    """Why turns are left out."""
    report, limits = projection.report, basis.limits
    if report.first_turn >= report.total_turns:
        return "overrun"
    return "model_limit" if limits.host_limit and limits.host_limit < limits.budget else "budget"


def _kinds(projection: Projection) -> Sequence[tuple[Any, str]]:
    stored = {id(message) for message in projection.before}
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


def _shown(message: Any, kind: str, host: Host) -> dict[str, Any]:
    return {
        "role": field(message, "role"),
        "text": text_of(field(message, "content"), media=True),
        "tokens": host.measure(message).tokens,
        "kind": kind,
    }
