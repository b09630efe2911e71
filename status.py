"""What the commands about the window do and answer.

Numbers that are estimates carry "≈"; what the provider reported stands beside them.
"""

import time
from datetime import date, timedelta

from .request_flow import RequestFlow
from .request_log import Day, RequestRecord
from .sections import oversized
from .texts import Texts
from .topics import start_topic

WEEK = 7


async def status_of(flow: RequestFlow, texts: Texts, session_id: str) -> str:
    """What the last request of a session kept, left out, cost and cached.

    Raises:
        StorageUnavailable: The records cannot be read now.
    """
    records = await flow.log.newest(session_id, 1)
    if not records:
        return texts.get("status_none")
    first = (date.fromtimestamp(flow.clock()) - timedelta(WEEK - 1)).isoformat()
    days = [day for day in await flow.log.days(session_id, WEEK) if day.day >= first]
    return "\n".join(_lines(records[0], days, texts))


def _lines(record: RequestRecord, days: list[Day], texts: Texts) -> list[str]:
    return [
        _sent(record, texts),
        _tokens(record, texts),
        *_problems(record, texts),
        texts.get(
            "status_plugin",
            milliseconds=record.milliseconds,
            requests=sum(day.requests for day in days),
            share=_share(
                sum(day.cached_tokens for day in days),
                sum(day.prompt_tokens for day in days),
                texts,
            ),
        ),
    ]


def _sent(record: RequestRecord, texts: Texts) -> str:
    nothing = record.first_turn >= record.total_turns
    return texts.get(
        "status_sent_nothing" if nothing else "status_sent",
        time=time.strftime("%m-%d %H:%M", time.localtime(record.time)),
        model=record.model or "?",
        first=min(record.first_turn + 1, record.total_turns),
        total=record.total_turns,
        left=record.left_out_turns,
        left_messages=record.left_out_messages,
        lightened=record.lightened,
    )


def _tokens(record: RequestRecord, texts: Texts) -> str:
    unreported = texts.get("status_unreported")
    reported = record.prompt_tokens is not None
    return texts.get(
        "status_tokens",
        estimated=record.estimated,
        prompt=record.prompt_tokens if reported else unreported,
        cached=_share(record.cached_tokens or 0, record.prompt_tokens or 0, texts),
        budget=record.budget,
    )


def _share(cached: int, prompt: int, texts: Texts) -> str:
    return f"{cached / prompt:.0%}" if prompt else texts.get("status_unreported")


def _problems(record: RequestRecord, texts: Texts) -> list[str]:
    lines = []
    if record.left_out_turns:
        lines.append(texts.get(f"status_reason_{record.reason or 'budget'}"))
    # What tool calls added later pushed nothing out.
    over = record.estimated - record.sections.get("tool_steps", 0) - record.budget
    if record.budget and over > 0:
        lines.append(texts.get("status_overrun", over=over))
    for name in oversized(record.sections, record.budget):
        section, tokens = texts.get(f"section_{name}"), record.sections[name]
        lines.append(texts.get("status_section", name=section, tokens=tokens))
    return lines


async def change_topic(flow: RequestFlow, session_id: str, undo: bool) -> str:
    """Begins a new topic in a session's current conversation, or takes it back.

    Returns:
        The key of the text that says what happened.

    Raises:
        StorageUnavailable: The mark could not be stored.
    """
    topics = flow.conversations.topics
    if undo:
        conversation_id = await flow.host.current_conversation_id(session_id)
        undone = conversation_id is not None and await topics.undo(conversation_id)
        return "topic_undone" if undone else "topic_none"
    conversation_id, history = await flow.cuts.whole_history(session_id)
    now = int(flow.clock())
    begun = await start_topic(topics, session_id, conversation_id, history, now)
    return "topic_started" if begun else "topic_nothing"
