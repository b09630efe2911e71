"""The preview is what a request would send, and looking at it changes nothing."""

import threading
import time
from types import SimpleNamespace

import pytest
from astrbot_plugin_context_manager import preview as preview_module
from astrbot_plugin_context_manager.calibration import NOTHING
from astrbot_plugin_context_manager.context_logic import Limits, WindowMark, build
from astrbot_plugin_context_manager.host import ChatProvider, Host
from astrbot_plugin_context_manager.message_text import Draft
from astrbot_plugin_context_manager.preview import kept_answers, preview
from astrbot_plugin_context_manager.request_flow import RequestFlow
from astrbot_plugin_context_manager.request_log import RequestLog, RequestRecord
from astrbot_plugin_context_manager.request_record import SentHead
from astrbot_plugin_context_manager.run_usage import sample_of
from astrbot_plugin_context_manager.settings import Settings
from astrbot_plugin_context_manager.storage import Storage
from astrbot_plugin_context_manager.tokens import TokenCounter

GROUP = "qq:GroupMessage:100"


class StoredHost(Host):
    """A host whose conversation lies in a list."""

    def __init__(self, tokens):
        super().__init__(SimpleNamespace(get_config=lambda *_: self.config), tokens)
        self.config = {}
        self.history = []
        self.provider = None

    async def load_history(self, session_id):
        return "c", list(self.history)

    async def current_chat_provider(self, session_id):
        return self.provider


@pytest.fixture
async def storage(tmp_path):
    opened = await Storage.open(tmp_path / "context_manager.db", Settings())
    await opened.see_session(GROUP, "群", "qq", 100)
    yield opened
    await opened.close()


@pytest.fixture
def flow(storage):
    tokens = TokenCounter()
    log = RequestLog(storage.database)
    return RequestFlow(StoredHost(tokens), tokens, Settings(), storage, time.time, log)


def dialogue(turns, size=40):
    return [
        {"role": role, "content": f"{role} {number} ".ljust(size, "字")}
        for number in range(turns)
        for role in ("user", "assistant")
    ]


async def shown(flow, storage, **changes):
    if changes:
        await storage.update_session(GROUP, changes, None, 1)
    return await preview(flow, await storage.get_session(GROUP))


def sizes(view):
    return {section["name"]: section["tokens"] for section in view["sections"]}


async def test_everything_fits_and_nothing_is_left_out(flow, storage):
    flow.host.history = dialogue(3)
    view = await shown(flow, storage, fixed_memory="规则")
    assert [m["role"] for m in view["messages"]] == ["system", *["user", "assistant"] * 3]
    assert view["messages"][0]["kind"] == "system" and "规则" in view["messages"][0]["text"]
    assert view["left_out"] == {"turns": 0, "messages": 0, "tokens": 0, "reason": ""}
    assert (view["first_turn"], view["as_of"]) == (0, None)


async def test_the_window_is_cut_where_a_request_would_cut_it(flow, storage):
    flow.host.history = dialogue(60)
    view = await shown(flow, storage, recent_context_token_budget=1024)
    host = flow.host
    messages = [*host.bound(flow.host.history), host.make_message(Draft("user", ""))]
    sample = sample_of(flow.tokens, flow.host.history, NOTHING)
    estimate = await flow.estimates.estimate([], "c", sample)
    projection = build(
        messages,
        fixed_memory="",
        summary="",
        limits=Limits(1024, margin=estimate.margin, framing=estimate.framing),
        mark=None,
        tool_tokens=0,
        measure=host.measured_by(estimate),
        make_message=host.make_message,
    )
    first = projection.report.first_turn
    assert 0 < first < 60
    assert view["first_turn"] == view["left_out"]["turns"] == first
    assert view["left_out"]["messages"] == 2 * first and view["left_out"]["tokens"] > 0
    assert view["left_out"]["reason"] == "budget"
    assert len(view["messages"]) == 2 * (60 - first)


async def test_looking_changes_no_remembered_window(flow, storage):
    flow.host.history = dialogue(60)
    mark = WindowMark(10, "gone", "old")
    await storage.set_window("c", GROUP, mark)
    await shown(flow, storage, recent_context_token_budget=1024)
    assert await storage.get_window("c") == mark
    assert not flow.reports and not flow.heads and not flow.counters


async def test_the_head_is_that_of_the_last_request(flow, storage):
    flow.host.history = dialogue(2)
    system = flow.host.make_message(Draft("system", "persona"))
    dialog = flow.host.make_message(Draft("user", "begin"))
    dialog._no_save = True
    flow.heads[GROUP] = SentHead([system, dialog], (*NOTHING[:7], 300, *NOTHING[8:]), {}, 77)
    view = await shown(flow, storage, summary="摘要")
    assert [m["kind"] for m in view["messages"]][:3] == ["system", "begin_dialog", "history"]
    assert view["messages"][0]["text"].startswith("persona\n")
    assert sizes(view)["tools"] == 300 and sizes(view)["begin_dialogs"] > 0
    assert view["as_of"] == 77


async def test_after_a_restart_the_sizes_of_the_last_record_count(flow, storage):
    flow.host.history = dialogue(60)
    sections = {"system": 400, "tools": 100, "begin_dialogs": 50, "window": 9}
    await flow.log.add(RequestRecord(GROUP, 88, "m", sections, 559, None, None, None, 0, 0, 5))
    view = await shown(flow, storage, recent_context_token_budget=1200)
    found = sizes(view)
    assert (found["system"], found["tools"], found["begin_dialogs"]) == (400, 100, 50)
    assert sum(found.values()) <= 1200 and view["as_of"] == 88


async def test_the_models_own_limit_is_named_as_the_reason(flow, storage):
    flow.host.history = dialogue(200, 200)
    flow.host.provider = ChatProvider("p", "m", 4000)
    assert (await shown(flow, storage))["left_out"]["reason"] == "model_limit"


async def test_a_head_larger_than_the_budget_leaves_every_turn_out(flow, storage):
    flow.host.history = dialogue(3)
    view = await shown(flow, storage, recent_context_token_budget=1024, fixed_memory="字" * 4000)
    assert view["left_out"]["reason"] == "overrun" and view["left_out"]["turns"] == 3


async def test_tool_calls_of_finished_turns_are_shown_as_the_changed_copy(flow, storage):
    calls = [{"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}]
    flow.host.history = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "1", "content": "x" * 300_000},
        {"role": "assistant", "content": "a"},
        {"role": "_checkpoint", "content": {"id": "x"}},
    ]
    question, answer = (await shown(flow, storage))["messages"]
    assert (question["kind"], answer["kind"]) == ("history", "lightened")
    assert "[工具结果 look]" in answer["text"] and len(answer["text"]) < 5000


@pytest.mark.parametrize(
    "config",
    [
        {"agent_runner": {"runner_type": "dify"}},
        {"provider_settings": {"agent_runner_type": "coze"}},
    ],
)
async def test_a_remote_agents_history_is_not_ours_to_show(flow, storage, config):
    flow.host.config = config
    view = await shown(flow, storage)
    assert (view["messages"], view["left_out"]["reason"]) == ([], "remote_agent")


async def test_a_conversation_the_host_cannot_load_is_said_to_be_unreadable(flow, storage):
    flow.host.history = [{"role": "nobody", "content": 5}]
    assert (await shown(flow, storage))["left_out"]["reason"] == "unreadable"


async def test_a_preview_is_built_off_the_event_loop(flow, storage, monkeypatch):
    threads = []
    built = preview_module._built

    def watched(*args):
        threads.append(threading.current_thread())
        return built(*args)

    monkeypatch.setattr(preview_module, "_built", watched)
    flow.host.history = dialogue(3)
    await shown(flow, storage)
    assert len(threads) == 1 and threads[0] is not threading.main_thread()


async def test_a_limit_keeps_the_head_and_the_newest_messages(flow, storage):
    flow.host.history = dialogue(3)
    whole = await shown(flow, storage, fixed_memory="规则")
    part = await preview(flow, await storage.get_session(GROUP), 2)
    head = [m for m in whole["messages"] if m["kind"] in ("system", "begin_dialog")]
    assert part["messages"] == head + whole["messages"][len(head) :][-2:]
    assert part["messages_total"] == len(whole["messages"])


async def test_only_what_changed_is_built_anew(flow, storage):
    kept = kept_answers()
    flow.host.history = dialogue(3)
    session = await storage.get_session(GROUP)
    first = await preview(flow, session, kept=kept)
    assert await preview(flow, session, kept=kept) is first
    assert len((await preview(flow, session, 2, kept))["messages"]) == 2
    flow.host.history = dialogue(4)
    assert await preview(flow, session, kept=kept) == await preview(flow, session)
    session = await storage.update_session(GROUP, {"fixed_memory": "规则"}, None, 1)
    assert await preview(flow, session, kept=kept) == await preview(flow, session)
