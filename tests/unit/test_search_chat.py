"""What a chat and its model are told about a search, whatever they ask."""

import pytest
from astrbot_plugin_context_manager.database import Database
from astrbot_plugin_context_manager.errors import StorageUnavailable
from astrbot_plugin_context_manager.search_chat import TOOL_NAME, ChatSearch
from astrbot_plugin_context_manager.texts import Texts

from dev.archive_seed import Said, archive

HERE, THERE = "qq:GroupMessage:1", "qq:GroupMessage:2"


@pytest.fixture
async def chat(tmp_path):
    database = await Database.open(tmp_path / "context_manager.db")
    said = [
        Said(HERE, 0, "我不吃香菜", sender="小明", time=1_714_730_400),
        Said(HERE, 1, "记住了，不放香菜", role="assistant"),
        Said(HERE, 2, f'[工具调用 {TOOL_NAME}] {{"query": "香菜"}}', role="assistant"),
        Said(HERE, 3, "1. 小明：我不吃香菜", role="tool", sender=TOOL_NAME),
        Said(HERE, 4, "长" * 900 + "尾巴在这里" + "长" * 900),
        Said(THERE, 0, "香菜的暗号是芝麻", sender="小红"),
    ]
    await archive(database, said)
    yield ChatSearch(database, Texts("zh-CN"))
    await database.close()


async def test_the_command_names_time_speaker_and_hit(chat):
    answer = await chat.command(HERE, " 香菜 ")
    assert "小明：我不吃【香菜】" in answer
    assert "2024-05-0" in answer
    assert "机器人：记住了" in answer


@pytest.mark.parametrize("query", ["", "  ", "\n"])
async def test_a_command_without_words_is_told_how(chat, query):
    assert "/搜索历史" in await chat.command(HERE, query)


async def test_nothing_found_is_said(chat):
    assert "没有找到“天鹅绒”" in await chat.command(HERE, "天鹅绒")


async def test_a_very_long_query_is_not_repeated_whole(chat):
    assert len(await chat.command(HERE, "天鹅绒" * 500)) < 200


async def test_braces_in_a_query_and_in_messages_are_plain_text(chat):
    assert "{total}" in await chat.command(HERE, "{total}{0}")


async def test_the_tool_passes_over_its_own_earlier_searches(chat):
    answer = await chat.tool(HERE, {"query": "香菜"})
    assert "找到 2 条" in answer
    assert TOOL_NAME not in answer


async def test_a_long_message_is_told_as_the_piece_with_the_hit(chat):
    answer = await chat.tool(HERE, {"query": "尾巴在这里"})
    assert "尾巴在这里" in answer
    assert len(answer) < 400


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"query": None},
        {"query": 7},
        {"query": ["香菜"]},
        {"query": {"$ne": ""}},
        {"query": "\ud800"},
        {"query": "香菜", "limit": "many"},
        {"query": "香菜", "limit": float("nan")},
        {"query": "香菜", "limit": -5},
        {"query": "香菜", "limit": 1e300},
        {"query": "香菜", "limit": True},
        {"query": "香菜", "session_id": THERE},
        {"query": "香菜", "scope": None, "all": True},
        {"query": f"{THERE} 暗号 香菜"},
        {"query": "暗号' OR session_id = 'qq:GroupMessage:2"},
        {"query": '暗号" OR "'},
    ],
)
async def test_whatever_a_model_asks_it_is_answered_from_its_own_session(chat, arguments):
    answer = await chat.tool(HERE, arguments)
    assert answer
    assert "芝麻" not in answer
    assert "小红" not in answer


async def test_a_limit_is_kept_within_bounds(chat):
    assert (await chat.tool(HERE, {"query": "香菜", "limit": -5})).count("\n") == 1
    assert (await chat.tool(HERE, {"query": "香菜", "limit": 1e300})).count("\n") == 2


async def test_a_closed_database_is_storage_unavailable(chat):
    await chat._database.close()
    with pytest.raises(StorageUnavailable):
        await chat.command(HERE, "香菜")
