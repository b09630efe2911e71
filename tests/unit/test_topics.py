"""New topics: set, taken back, begun by themselves; and what a summary covers."""

import time
from types import SimpleNamespace

import pytest
from astrbot_plugin_context_manager.errors import StorageUnavailable
from astrbot_plugin_context_manager.request_flow import RequestFlow
from astrbot_plugin_context_manager.request_log import RequestLog, RequestRecord
from astrbot_plugin_context_manager.settings import Settings
from astrbot_plugin_context_manager.status import change_topic, status_of
from astrbot_plugin_context_manager.storage import Storage
from astrbot_plugin_context_manager.texts import LANGUAGES, Texts
from astrbot_plugin_context_manager.tokens import TokenCounter
from astrbot_plugin_context_manager.topics import HOUR, StoredTopic
from astrbot_plugin_context_manager.watermark import prefix_hash

from .messages import turns
from .test_preview import StoredHost, dialogue

GROUP = "qq:GroupMessage:100"


@pytest.fixture
async def storage(tmp_path):
    opened = await Storage.open(tmp_path / "context_manager.db", Settings())
    await opened.see_session(GROUP, "群", "qq", 100)
    yield opened
    await opened.close()


class Host(StoredHost):
    async def current_conversation_id(self, session_id):
        return "c" if self.history else None

    async def load_conversation(self, session_id, conversation_id):
        return list(self.history)


def flow_on(storage):
    tokens = TokenCounter()
    log = RequestLog(storage.database)
    return RequestFlow(Host(tokens), tokens, Settings(), storage, time.time, log)


@pytest.fixture
def flow(storage):
    return flow_on(storage)


async def session_with(storage, **changes):
    return await storage.update_session(GROUP, changes, None, 1)


async def remembered(flow, storage, history, **changes):
    session = await session_with(storage, **changes)
    return await flow.conversations.of(session, "c", history)


# By hand


async def test_a_topic_is_set_kept_over_a_restart_and_taken_back(flow, storage):
    flow.host.history = dialogue(5)
    assert await change_topic(flow, GROUP, undo=False) == "topic_started"
    again = flow_on(storage)
    topic = await again.conversations.topics.of("c")
    assert (topic.mark.message_index, topic.source) == (10, "user")
    again.host.history = flow.host.history
    assert await change_topic(again, GROUP, undo=True) == "topic_undone"
    assert await again.conversations.topics.of("c") is None
    assert await change_topic(again, GROUP, undo=True) == "topic_none"


async def test_checkpoints_do_not_count(flow):
    flow.host.history = [*dialogue(5), {"role": "_checkpoint", "content": {"id": "x"}}]
    await change_topic(flow, GROUP, undo=False)
    assert (await flow.conversations.topics.of("c")).mark.message_index == 10


async def test_without_a_history_there_is_nothing_to_begin(flow):
    assert await change_topic(flow, GROUP, undo=False) == "topic_nothing"
    assert await change_topic(flow, GROUP, undo=True) == "topic_none"


async def test_the_mark_belongs_to_its_conversation(flow, storage):
    flow.host.history = dialogue(5)
    await change_topic(flow, GROUP, undo=False)
    assert await flow.conversations.topics.of("other") is None
    assert (await remembered(flow, storage, turns(5))).topic.message_index == 10


async def test_a_closed_database_says_so_and_a_request_goes_on_without_a_topic(flow, storage):
    flow.host.history = dialogue(5)
    session = await storage.get_session(GROUP)
    await storage.close()
    with pytest.raises(StorageUnavailable):
        await change_topic(flow, GROUP, undo=False)
    found = await flow.conversations.of(session, "c", turns(5))
    assert (found.topic, found.mark, found.covered) == (None, None, 0)


async def test_a_topic_that_is_known_survives_a_closed_database(flow, storage):
    flow.host.history = dialogue(5)
    await change_topic(flow, GROUP, undo=False)
    session = await storage.get_session(GROUP)
    await storage.close()
    assert (await flow.conversations.of(session, "c", turns(5))).topic is not None


# By itself


async def message(flow, addressed, group=GROUP):
    event = SimpleNamespace(unified_msg_origin=group, is_at_or_wake_command=addressed)
    await flow.see_group_message(event)


async def test_what_the_page_switches_on_counts_from_the_next_message_on(flow, storage):
    await message(flow, False)
    await session_with(storage, topic_idle_messages=2)
    for _ in range(2):
        await message(flow, False)
    session = await storage.get_session(GROUP)
    await flow.conversations.begin_idle_topic(session, "c", turns(5), 1_000_000)
    assert await flow.conversations.topics.of("c") is not None


async def topic_after(flow, storage, addressed, **changes):
    """Whether a request begins a new topic after such messages of the group."""
    flow._sessions[GROUP] = session = await session_with(storage, **changes)
    for each in addressed:
        await message(flow, each)
    await flow.conversations.begin_idle_topic(session, "c", turns(5), 1_000_000)
    return await flow.conversations.topics.of("c")


async def test_enough_messages_in_a_row_begin_a_topic(flow, storage):
    topic = await topic_after(flow, storage, [False] * 30 + [True], topic_idle_messages=30)
    assert topic == StoredTopic(topic.mark, "idle", 1_000_000)
    assert topic.mark.message_index == 10


@pytest.mark.parametrize(
    ("addressed", "limit"),
    [([False] * 29 + [True], 30), ([False] * 20 + [True] + [False] * 20, 30), ([False] * 99, 0)],
)
async def test_a_broken_or_short_row_or_none_asked_for_begins_none(flow, storage, addressed, limit):
    assert await topic_after(flow, storage, addressed, topic_idle_messages=limit) is None


async def test_a_row_counts_once(flow, storage):
    first = await topic_after(flow, storage, [False] * 5, topic_idle_messages=5)
    await flow.conversations.topics.undo("c")
    assert first and await topic_after(flow, storage, [True], topic_idle_messages=5) is None


async def test_a_command_between_the_row_and_the_request_does_not_break_it(flow, storage):
    assert await topic_after(flow, storage, [False] * 5 + [True, True], topic_idle_messages=5)


@pytest.mark.parametrize(("before", "after", "begun"), [(20, 10, True), (20, 9, False)])
async def test_a_row_goes_on_after_a_restart(flow, storage, before, after, begun):
    session = await session_with(storage, topic_idle_messages=30)
    for _ in range(before):
        await message(flow, addressed=False)
    again = flow_on(storage)
    for addressed in [*[False] * after, True]:
        await message(again, addressed)
    await again.conversations.begin_idle_topic(session, "c", turns(5), 1_000_000)
    assert (await again.conversations.topics.of("c") is not None) == begun


async def test_a_row_that_was_used_does_not_come_back_with_a_restart(flow, storage):
    assert await topic_after(flow, storage, [False] * 5, topic_idle_messages=5)
    again = flow_on(storage)
    await again.conversations.topics.undo("c")
    assert await topic_after(again, storage, [True], topic_idle_messages=5) is None


async def test_a_database_that_fails_costs_only_the_memory_of_the_row(flow, storage):
    flow._sessions[GROUP] = await session_with(storage, topic_idle_messages=5)
    await storage.close()
    for _ in range(5):
        await message(flow, addressed=False)
    assert await flow.conversations.topics.idle_messages(GROUP, 5)


async def test_messages_of_groups_that_are_not_known_are_not_counted(flow):
    await message(flow, addressed=False, group="qq:GroupMessage:unknown")
    assert len(flow.conversations.topics._counts) == 0


def record(at, **more):
    return RequestRecord(GROUP, at, "m", {}, 10, None, None, None, 0, 0, 5, **more)


@pytest.mark.parametrize(("hours", "begun"), [(6, True), (7, False), (0, False)])
async def test_hours_without_a_request_begin_a_topic(flow, storage, hours, begun):
    await flow.log.add(record(1_000_000 - 6 * HOUR))
    topic = await topic_after(flow, storage, [], topic_idle_hours=hours)
    assert (topic is not None) == begun


async def test_the_first_request_of_a_group_begins_no_topic(flow, storage):
    assert await topic_after(flow, storage, [], topic_idle_hours=1) is None


async def test_a_private_chat_begins_no_topic_by_itself(flow, storage):
    private = "qq:FriendMessage:7"
    await storage.see_session(private, "n", "qq", 1)
    session = await storage.update_session(private, {"topic_idle_hours": 1}, None, 1)
    await flow.log.add(record(1))
    await flow.conversations.begin_idle_topic(session, "c", turns(5), 1_000_000)
    assert await flow.conversations.topics.of("c") is None


async def test_a_mark_that_cannot_be_stored_stops_no_request(flow, storage):
    flow._sessions[GROUP] = session = await session_with(storage, topic_idle_messages=1)
    await message(flow, addressed=False)
    await storage.close()
    await flow.conversations.begin_idle_topic(session, "c", turns(5), 1_000_000)


# What the summary covers


async def summarised(storage, history, covered, conversation_id="c"):
    await storage.commit_summary(
        GROUP,
        "text",
        base_summary="",
        model="m",
        conversation_id=conversation_id,
        covered=covered,
        prefix_hash=prefix_hash(history[:covered]),
        tokens=1,
        source="model",
        now=1,
    )


async def test_the_covered_part_counts_where_a_tail_is_asked_for(flow, storage):
    history = dialogue(5)
    await summarised(storage, history, 6)
    assert (await remembered(flow, storage, history, tail_tokens=100)).covered == 6
    assert (await remembered(flow, storage, history, tail_tokens=0)).covered == 0


async def test_an_edited_or_foreign_prefix_covers_nothing(flow, storage):
    history = dialogue(5)
    await summarised(storage, history, 6)
    assert (await remembered(flow, storage, history, tail_tokens=99)).covered == 6
    same_length = history[0]["content"][:-1] + "~"
    for text in (same_length, "other words"):
        edited = [{"role": "user", "content": text}, *history[1:]]
        assert (await remembered(flow, storage, edited, tail_tokens=100)).covered == 0, text
    assert (await remembered(flow, storage, history[:4], tail_tokens=101)).covered == 0
    session = await storage.get_session(GROUP)
    assert (await flow.conversations.of(session, "other", history)).covered == 0
    assert (await flow.conversations.of(session, "c", history)).covered == 6


async def test_the_covered_part_is_hashed_once_not_with_every_request(flow, storage, monkeypatch):
    from astrbot_plugin_context_manager import conversation_state

    hashed = []
    real = conversation_state.covered_messages
    monkeypatch.setattr(
        conversation_state, "covered_messages", lambda *a: hashed.append(1) or real(*a)
    )
    history = dialogue(5)
    await summarised(storage, history, 6)
    for _ in range(5):
        history += dialogue(1)
        assert (await remembered(flow, storage, history, tail_tokens=100)).covered == 6
    assert len(hashed) == 1


# Status


async def status(flow, language="zh-CN"):
    return await status_of(flow, Texts(language), GROUP)


@pytest.mark.parametrize("language", LANGUAGES)
async def test_the_status_names_what_was_sent_left_out_lightened_and_cached(flow, language):
    sections = {"system": 100, "window": 500}
    await flow.log.add(
        RequestRecord(GROUP, 88, "gpt", sections, 600, 640, 320, 9, 7, 5, 3.5, 8000, 20, 12, 4, "")
    )
    text = await status(flow, language)
    assert "{" not in text and len(text.splitlines()) <= 5
    for part in ("gpt", "8–20", "≈600", "640", "50%", "8,000", "3.5", "12", "5", "4"):
        assert part in text, part


async def test_the_status_says_by_how_much_the_budget_is_exceeded(flow):
    await flow.log.add(record(88, budget=4, total_turns=3, left_out_messages=6))
    assert "≈6" in await status(flow)


async def test_what_tools_added_is_no_reason_to_say_that_no_history_was_sent(flow):
    sections = {"window": 90, "tool_steps": 500}
    await flow.log.add(
        RequestRecord(GROUP, 88, "m", sections, 590, None, None, None, 0, 0, 1, 100, 5)
    )
    assert "超出预算" not in await status(flow)


async def test_the_status_of_the_first_message_of_a_chat_names_no_turns(flow):
    await flow.log.add(record(88, budget=100))
    text = await status(flow)
    assert "没有发送历史" in text and "0–0" not in text


async def test_the_last_seven_days_are_days_of_the_calendar(flow):
    day, now = 86_400, int(time.time())
    for ago in (400, 30, 7, 6, 1, 0):
        await flow.log.add(record(now - ago * day))
    assert "近 7 天：3 次请求" in await status(flow)


async def test_the_status_warns_of_a_section_over_a_third_of_the_budget(flow):
    for size, warned in ((30, False), (40, True)):
        sections = {"fixed_memory": size, "summary": 1}
        await flow.log.add(
            RequestRecord(GROUP, 88, "m", sections, 50, None, None, None, 0, 0, 1, 100)
        )
        assert ("固定记忆" in await status(flow)) == warned


async def test_the_status_names_the_reason_and_what_was_not_reported(flow):
    more = {"budget": 100, "total_turns": 3, "reason": "topic"}
    await flow.log.add(RequestRecord(GROUP, 1, "m", {}, 9, None, None, None, 3, 3, 1, **more))
    text = await status(flow)
    assert "新话题" in text and "未报告" in text and "没有发送历史" in text


async def test_the_status_of_a_first_message_says_that_there_was_no_history(flow):
    await flow.log.add(record(88, total_turns=0, left_out_messages=0))
    assert "没有发送历史" in await status(flow)


async def test_without_a_request_the_status_says_so(flow):
    assert "还没有请求记录" in await status(flow)
