"""A check that fails leaves the cut history to be repaired by the next one."""

import json
from types import SimpleNamespace

import pytest
from astrbot.core.agent.message import Message, bind_checkpoint_messages
from astrbot_plugin_context_manager.host import Host
from astrbot_plugin_context_manager.journal import Journal
from astrbot_plugin_context_manager.open_cuts import OpenCuts
from astrbot_plugin_context_manager.recovery import repair_left_behind
from astrbot_plugin_context_manager.request_state import RequestState
from astrbot_plugin_context_manager.tokens import TokenCounter

from .messages import build_request

HISTORY = [
    {"role": role, "content": f"{role} {number} " + "x" * 50}
    for number in range(40)
    for role in ("user", "assistant")
]


class Conversations:
    """The host's conversations: one, which can fail to be read."""

    def __init__(self):
        self.stored = HISTORY
        self.failures = 0

    async def get_conversation(self, session_id, conversation_id, *_):
        if self.failures:
            self.failures -= 1
            raise RuntimeError("database is locked")
        history = json.dumps(self.stored)
        return SimpleNamespace(cid="c", history=history, title="", created_at=1, updated_at=2)

    async def get_conversations(self, unified_msg_origin=None):
        return [await self.get_conversation("s", "c")]

    async def update_conversation(self, session_id, conversation_id, history=None, **_):
        if history is not None:
            self.stored = history


@pytest.fixture
def chats():
    return Conversations()


@pytest.fixture
def host(chats):
    return Host(SimpleNamespace(conversation_manager=chats), TokenCounter())


@pytest.fixture
async def cuts(host, database):
    return await instance(host, database)


async def instance(host, database):
    """The cuts of a plugin instance that starts now."""
    made = OpenCuts(host, Journal(database, lambda: 1_000_000))
    await made.journal.load()
    return made


async def request(cuts, chats, text, restored=True):
    """A cut request that the host saves; without a restore it saves the short list."""
    loaded = bind_checkpoint_messages(chats.stored)
    messages = [Message(role="system", content="s"), *loaded, Message(role="user", content=text)]
    state = RequestState(None, "s", "c", request=SimpleNamespace())
    await cuts.mend(state, messages)
    state.projection = build_request(messages, budget=500, make_message=cuts.host.make_message)
    state.run_context = SimpleNamespace(messages=messages)
    await cuts.begin(state)
    final = [*state.projection.messages, Message(role="assistant", content=f"reply to {text}")]
    messages[:] = state.projection.restore(final) if restored else final
    state.restored = restored
    chats.stored = cuts.host.saved_form(messages)
    return state


def texts(chats):
    return [message["content"] for message in chats.stored]


WHOLE = [message["content"] for message in HISTORY]


async def test_a_cut_whose_check_failed_is_mended_by_the_next_request(cuts, chats):
    state = await request(cuts, chats, "one", restored=False)
    assert len(chats.stored) < len(HISTORY)
    chats.failures = 1
    await cuts.settle(state)
    assert cuts.is_cut("c")
    await cuts.settle(await request(cuts, chats, "two"))
    assert texts(chats) == [*WHOLE, "one", "reply to one", "two", "reply to two"]
    assert not cuts.is_cut("c") and cuts.journal.left_behind == {}


async def test_a_request_that_is_not_mended_leaves_the_repair_to_its_own_check(cuts, chats):
    state = await request(cuts, chats, "one", restored=False)
    chats.failures = 1
    await cuts.settle(state)
    chats.stored = [*chats.stored, {"role": "user", "content": "two"}]
    other = RequestState(None, "s", "c", request=SimpleNamespace())
    other.failed = True
    await cuts.settle(other)
    assert texts(chats) == [*WHOLE, "one", "reply to one", "two"]


async def test_a_repair_at_the_start_that_fails_is_made_up_by_the_next_request(
    host, database, cuts, chats
):
    await request(cuts, chats, "one", restored=False)
    again = await instance(host, database)
    chats.failures = 1
    assert await repair_left_behind(host, again.journal) == 0
    await again.settle(await request(again, chats, "two"))
    assert texts(chats) == [*WHOLE, "one", "reply to one", "two", "reply to two"]


async def test_a_repair_at_the_start_that_fails_is_made_up_at_the_next_start(
    host, database, cuts, chats
):
    await request(cuts, chats, "one", restored=False)
    chats.failures = 1
    assert await repair_left_behind(host, (await instance(host, database)).journal) == 0
    assert await repair_left_behind(host, (await instance(host, database)).journal) == 1
    assert texts(chats) == [*WHOLE, "one", "reply to one"]


async def test_what_the_user_cleared_after_a_failed_check_stays_cleared(cuts, chats):
    state = await request(cuts, chats, "one", restored=False)
    chats.failures = 1
    await cuts.settle(state)
    chats.stored = []
    await cuts.settle(await request(cuts, chats, "two"))
    assert texts(chats) == ["two", "reply to two"]
    assert not cuts.is_cut("c")
