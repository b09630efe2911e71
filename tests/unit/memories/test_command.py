"""The command lists, adds, deletes, and clears after asking."""

from types import SimpleNamespace

import pytest
from astrbot_plugin_context_manager.command_memory import CONFIRM_SECONDS, MemoryCommand
from astrbot_plugin_context_manager.memories import LongTermMemory
from astrbot_plugin_context_manager.settings import Settings
from astrbot_plugin_context_manager.storage import Storage
from astrbot_plugin_context_manager.texts import Texts

from .parts import Provider
from .test_tools import GROUP, PRIVATE, Event


@pytest.fixture
async def command(tmp_path):
    storage = await Storage.open(tmp_path / "context_manager.db", Settings())
    memory = LongTermMemory(storage, Provider(model=None), Settings())
    host = SimpleNamespace(session_of=lambda event: (event.unified_msg_origin, "", "qq"))
    now = SimpleNamespace(seconds=0.0)
    command = MemoryCommand(memory, storage, host, Texts("zh-CN"), lambda: now.seconds)

    async def say(words, session_id=GROUP, name="小明"):
        return await command.answer(Event(session_id, name), words)

    yield SimpleNamespace(say=say, memory=memory, now=now, storage=storage)
    await memory.close()
    await storage.close()


async def test_a_list_names_ids_and_how_to_go_on(command):
    assert "还没有长期记忆" in await command.say("")
    await command.say("添加 周五\n发布  新版")
    answer = await command.say("")
    assert "最新 1 条，共 1 条" in answer and "#1 [小明] 周五 发布 新版" in answer
    assert "没有开启" in answer and "/记忆 添加" in answer


@pytest.mark.parametrize("words", ["添加 喜欢爬山", "add 喜欢爬山", "增加\n喜欢爬山"])
async def test_what_is_added_comes_from_the_command(command, words):
    assert await command.say(words) == "已记住 #1。"
    [added] = await command.memory.store.all(GROUP)
    assert (added.text, added.source, added.about) == ("喜欢爬山", "command", "小明")
    assert "已经记着" in await command.say("添加 喜欢爬山")
    assert "内容是空的" in await command.say("添加")


async def test_two_people_of_a_group_may_add_the_same(command):
    await command.say("添加 喜欢爬山")
    assert await command.say("添加 喜欢爬山", name="小红") == "已记住 #2。"
    assert "已经记着" in await command.say("添加 喜欢爬山", name="小红")
    assert await command.say("添加 喜欢爬山", PRIVATE) == "已记住 #3。"
    assert "已经记着" in await command.say("添加 喜欢爬山", PRIVATE, name="小红")


async def test_a_deleted_memory_is_named(command):
    await command.say("添加 喜欢爬山")
    await command.say("添加 住在杭州", PRIVATE)
    assert "没有编号为 2" in await command.say("删除 2")
    assert "#1 [小明] 喜欢爬山" in await command.say("删除 #1")
    assert "用法" in await command.say("删除 全部")
    assert "用法" in await command.say("改写 1")
    assert len(await command.memory.store.all(PRIVATE)) == 1


async def test_clearing_takes_the_same_command_twice_within_a_minute(command):
    for text in ("喜欢爬山", "住在杭州"):
        await command.say(f"添加 {text}")
    assert "全部 2 条" in await command.say("清空")
    command.now.seconds = CONFIRM_SECONDS + 1
    assert "再发送一次" in await command.say("clear")
    assert "还没有" in await command.say("清空", PRIVATE)
    assert await command.say("清空") == "已删除全部 2 条长期记忆。"
    assert await command.memory.store.all(GROUP) == []


async def test_a_broken_database_is_said(command):
    await command.storage.close()
    assert "数据库暂时不可用" in await command.say("添加 喜欢爬山")
