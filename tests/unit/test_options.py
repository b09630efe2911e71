"""Every option is stored, checked, exported and defaulted the same way everywhere."""

import json
import sqlite3

import pytest
from astrbot_plugin_context_manager.api_models import SaveBody
from astrbot_plugin_context_manager.importing import import_sessions
from astrbot_plugin_context_manager.options import FLAGS, OPTIONS, SHARED, SharedValues
from astrbot_plugin_context_manager.settings import Settings
from astrbot_plugin_context_manager.storage import Storage
from astrbot_plugin_context_manager.transfer import JSON_TAIL, json_head, json_session, parse
from pydantic import ValidationError

GROUP = "qq:GroupMessage:100"
OTHER = {
    "recent_context_token_budget": 4000,
    "summary_target_tokens": 300,
    "window_keep_ratio": 0.5,
    "keep_first_turns": 2,
    "tail_tokens": 20_000,
    "auto_compress": True,
    "auto_compress_min_messages": 12,
    "auto_compress_threshold": 0.9,
    "auto_compress_notice": True,
    "topic_idle_messages": 30,
    "topic_idle_hours": 6,
    "archive_enabled": False,
    "search_tool_enabled": True,
    "memory_enabled": True,
}


@pytest.fixture
async def storage(tmp_path):
    opened = await Storage.open(tmp_path / "context_manager.db", Settings())
    yield opened
    await opened.close()


def values_of(session):
    return {name: getattr(session, name) for name in SHARED}


def saving(**changes):
    return SaveBody.model_validate({"session_id": GROUP, "revision": "1", "changes": changes})


def test_no_option_is_without_a_value_that_differs_from_its_default_here():
    assert OTHER.keys() == set(SHARED)
    assert all(OTHER[name] != value for name, value in SharedValues().model_dump().items())


async def test_a_new_session_has_the_documented_defaults(storage):
    session = await storage.see_session(GROUP, "群", "qq", 1)
    assert values_of(session) == SharedValues().model_dump()


def test_the_schema_gives_old_rows_the_documented_defaults(storage_file):
    with sqlite3.connect(storage_file) as db:
        db.execute("INSERT INTO sessions (session_id) VALUES ('old')")
        row = db.execute(f"SELECT {', '.join(SHARED)} FROM sessions").fetchone()
    assert dict(zip(SHARED, row, strict=True)) == SharedValues().model_dump()


@pytest.fixture
async def storage_file(storage, tmp_path):
    return tmp_path / "context_manager.db"


async def test_every_option_is_changed_and_read_back_with_its_type(storage):
    await storage.see_session(GROUP, "群", "qq", 1)
    session = await storage.update_session(GROUP, OTHER, None, 2)
    assert values_of(session) == OTHER
    assert all(isinstance(getattr(session, name), bool) for name in FLAGS)


async def test_values_for_all_are_also_the_defaults_of_new_sessions(storage):
    await storage.see_session(GROUP, "群", "qq", 1)
    await storage.apply_to_all(OTHER, 2)
    assert values_of(await storage.get_session(GROUP)) == OTHER
    assert values_of(await storage.see_session("qq:FriendMessage:2", "友", "qq", 3)) == OTHER


async def test_the_settings_form_gives_the_first_defaults(tmp_path):
    opened = await Storage.open(tmp_path / "other.db", Settings.from_config(OTHER))
    session = await opened.see_session(GROUP, "群", "qq", 1)
    await opened.close()
    assert values_of(session) == OTHER


async def test_options_travel_with_an_export(storage, tmp_path):
    await storage.see_session(GROUP, "群", "qq", 1)
    session = await storage.update_session(GROUP, OTHER, None, 2)
    content = json_head(1) + json_session(session, [], None, []) + JSON_TAIL
    other = await Storage.open(tmp_path / "other.db", Settings())
    await import_sessions(other, parse(content.encode()), apply=True, now=3, max_memories=200)
    imported = await other.get_session(GROUP)
    await other.close()
    assert values_of(imported) == OTHER


def test_an_older_export_without_options_leaves_them_as_they_are():
    [entry] = parse(
        json.dumps(
            {
                "format": "astrbot_plugin_context_manager",
                "version": 1,
                "sessions": [{"session_id": GROUP}],
            }
        ).encode()
    )
    assert entry.values == {}


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("window_keep_ratio", [0.29, 1.01, float("nan"), "0.5", True]),
        ("keep_first_turns", [-1, 51, 1.5, "2"]),
        ("tail_tokens", [-1, 1_000_001, True]),
        ("auto_compress_min_messages", [1, 1001]),
        ("auto_compress_threshold", [0.2, 1.1]),
        ("topic_idle_messages", [-1, 1001]),
        ("topic_idle_hours", [-1, 721]),
        *((name, [1, "true", []]) for name in FLAGS),
    ],
)
def test_a_value_outside_an_options_limits_is_refused_by_name(name, bad):
    for value in bad:
        with pytest.raises(ValidationError) as refusal:
            saving(**{name: value})
        assert refusal.value.errors()[0]["loc"][:2] == ("changes", name), value


def test_the_ten_columns_are_not_options():
    assert not {"recent_context_token_budget", "summary_target_tokens"} & set(OPTIONS)
