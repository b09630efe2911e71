"""However many sessions are seen, the memory held for them stays bounded."""

import asyncio
import gc
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
from astrbot_plugin_context_manager.host import Host
from astrbot_plugin_context_manager.message_text import Draft
from astrbot_plugin_context_manager.request_flow import RequestFlow
from astrbot_plugin_context_manager.request_log import RequestLog
from astrbot_plugin_context_manager.settings import Settings
from astrbot_plugin_context_manager.storage import Storage
from astrbot_plugin_context_manager.tokens import TokenCounter


class Event:
    """A private message as the host hands it to the hooks."""

    def __init__(self, number):
        self.unified_msg_origin = f"qq:FriendMessage:{number}"
        self.message_obj = SimpleNamespace()
        self._extras = {}

    def set_extra(self, name, value):
        self._extras[name] = value

    def get_extra(self, name):
        return self._extras.get(name)

    def get_result(self):
        return None

    def get_group_id(self):
        return ""

    def get_sender_name(self):
        return "name"

    def get_platform_id(self):
        return "qq"


class QuietHost(Host):
    """A host whose conversations nobody stores."""

    def __init__(self, tokens):
        context = SimpleNamespace(get_config=lambda *_: {}, get_using_provider=lambda _: None)
        super().__init__(context, tokens)

    async def save_conversation(self, session_id, conversation_id, history):
        pass

    async def load_conversation(self, session_id, conversation_id):
        return None

    async def list_conversations(self, session_id):
        return []


@pytest.fixture
async def flow(tmp_path):
    tokens = TokenCounter()
    storage = await Storage.open(tmp_path / "context_manager.db", Settings())
    log = RequestLog(storage.database)
    clock = count(1000)
    yield RequestFlow(QuietHost(tokens), tokens, Settings(), storage, lambda: next(clock), log)
    await storage.close()


async def ask(flow, number, hold=None):
    """One request of a session, from its first hook to the end of its task."""
    event, make = Event(number), flow.host.make_message
    conversation = SimpleNamespace(cid=f"c{number}", token_usage=0)
    await flow.prepare(event, SimpleNamespace(conversation=conversation, func_tool=None))
    texts = [("user", f"question {number} "), ("assistant", f"answer {number} "), ("user", "now")]
    messages = [make(Draft(role, text * 10)) for role, text in texts]
    run = SimpleNamespace(messages=messages)
    await flow.build(event, run)
    if hold is not None:
        await hold
    messages.append(make(Draft("assistant", f"reply {number}")))
    await flow.finish(event, run)


async def see(flow, numbers):
    for number in numbers:
        await asyncio.create_task(ask(flow, number))
        await flow.log.settle()


def held(flow):
    maps = (flow.heads, flow.reports, flow._sessions, flow.conversations._windows)
    return [len(each) for each in maps]


async def test_many_sessions_leave_only_the_newest_in_memory(flow):
    await see(flow, range(300))
    # The newest task's own callback and its check of what was saved run now.
    await asyncio.sleep(0)
    await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})
    assert held(flow) == [128] * 4 and not flow.counters["failures"]
    assert not flow._running and not flow.cuts._cuts


async def test_a_session_in_use_is_not_let_go(flow):
    gate = asyncio.Event()
    running = asyncio.create_task(ask(flow, 1000, hold=gate.wait()))
    await see(flow, range(200))
    session = "qq:FriendMessage:1000"
    assert session in flow._sessions and session in flow.heads
    assert "c1000" in flow.conversations._windows
    gate.set()
    await running
    await see(flow, range(200, 400))
    assert session not in flow._sessions


async def test_a_session_that_was_let_go_is_read_from_the_database_again(flow):
    await see(flow, [5])
    mark = await flow.conversations.window_of("c5")
    await see(flow, range(10, 300))
    assert "c5" not in flow.conversations._windows
    assert mark is not None and await flow.conversations.window_of("c5") == mark


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.full
@pytest.mark.timeout(1500)
async def test_a_hundred_thousand_sessions_grow_the_process_by_less_than_a_tenth(flow):
    await flow.tokens.load()
    await see(flow, range(3000))
    gc.collect()
    before = resident_bytes()
    await see(flow, range(3000, 103_000))
    gc.collect()
    grown = resident_bytes() / before - 1
    print(f"{before >> 20} MB, grown by {grown:.1%}")
    assert grown < 0.1 and not flow.counters["failures"]
