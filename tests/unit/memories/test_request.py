"""Memories on the current message: from what is left of the budget, or not at all."""

import dataclasses

import pytest
from astrbot_plugin_context_manager.limits import Limits
from astrbot_plugin_context_manager.memories import LongTermMemory
from astrbot_plugin_context_manager.memory import entry_of
from astrbot_plugin_context_manager.memory_request import Recaller
from astrbot_plugin_context_manager.memory_tools import shown_memories
from astrbot_plugin_context_manager.settings import Settings
from astrbot_plugin_context_manager.storage import Storage
from astrbot_plugin_context_manager.tokens import TokenCounter

from ..messages import Msg, build_request, size_of, turns, user
from .parts import Provider
from .test_tools import GROUP, Event

SETTINGS = Settings()


class MeasuringHost(Provider):
    """A host in which a character is a token."""

    def __init__(self):
        super().__init__(model=None)

    def make_message(self, draft):
        return Msg(draft.role, draft.content)

    def measure(self, message):
        return size_of(message)

    def temporary_part(self, text):
        return {"type": "text", "text": text, "_no_save": True}

    def text_part(self, text):
        return {"type": "text", "text": text}


class Requests:
    """Builds requests of one session whose memory holds one fact."""

    def __init__(self, storage, host, memory):
        self.storage = storage
        self.memory = memory
        self.recaller = Recaller(memory, host, TokenCounter(), SETTINGS)
        self.event = Event(GROUP)

    async def recall(self, question="能吃花生吗", budget=100_000, host_limit=None, **session):
        stored = await self.storage.get_session(GROUP)
        messages = [Msg("system", "s"), *turns(3), user(question)]
        projection = build_request(messages, budget=budget)
        values = {"memory_enabled": True, **session}
        self.projection = projection
        return await self.recaller.recall(
            self.event,
            dataclasses.replace(stored, **values),
            projection,
            Limits(budget, host_limit=host_limit),
        )


@pytest.fixture
async def requests(tmp_path):
    storage = await Storage.open(tmp_path / "context_manager.db", Settings())
    await storage.see_session(GROUP, "群", "qq", 1)
    host = MeasuringHost()
    memory = LongTermMemory(storage, host, SETTINGS)
    session = await storage.get_session(GROUP)
    await memory.save(session, entry_of("用户对花生过敏"), "model")
    yield Requests(storage, host, memory)
    await memory.close()
    await storage.close()


async def test_a_recall_is_counted_noted_and_changes_nothing_yet(requests):
    part = await requests.recall()
    current = requests.projection.current
    assert current.content == "能吃花生吗"
    assert "用户对花生过敏" in part.part["text"]
    assert requests.projection.report.sections["recalled"] > 0
    assert [known.text for known in shown_memories(requests.event)] == ["用户对花生过敏"]
    part.attach()
    assert current.content == [{"type": "text", "text": "能吃花生吗"}, part.part]


@pytest.mark.parametrize(
    ("room", "recalled"), [(0, False), (-50, False), (10_000, True)], ids=["none", "less", "enough"]
)
async def test_only_what_is_left_of_the_budget_is_used(requests, room, recalled):
    await requests.recall()
    used = requests.projection.report.estimated - requests.projection.report.sections["recalled"]
    # A tenth of a small budget stays free for the reply.
    budget = int((used + room) / 0.9) + 1 if room < 10_000 else used + room + 1024
    part = await requests.recall(budget=budget)
    assert (part is not None) is recalled
    assert ("recalled" in requests.projection.report.sections) is recalled


async def test_the_hosts_own_limit_is_kept(requests):
    await requests.recall()
    used = sum(size_of(m).host_tokens for m in requests.projection.messages)
    assert await requests.recall(host_limit=used + 20) is None
    assert await requests.recall(host_limit=used + 500) is not None


async def test_nothing_is_recalled_where_memory_is_off_or_nothing_fits(requests):
    assert await requests.recall(memory_enabled=False) is None
    assert await requests.recall("今天天气怎么样") is None
    reminder = "<system_reminder>花生</system_reminder>"
    assert await requests.recall(f"你好{reminder}") is None
    projection = build_request([Msg("system", "s")])
    assert await requests.recaller.recall(requests.event, None, projection, Limits(9000)) is None


async def test_an_error_leaves_the_request_without_memories(requests, caplog):
    async def broken(*_):
        raise RuntimeError("broken on purpose")

    requests.memory.recall = broken
    assert await requests.recall() is None
    assert "nothing recalled" in caplog.text
