"""Counting never fails or fetches anything, and a bad setting stops nothing."""

import ast
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import astrbot_plugin_context_manager.host as host_module
import astrbot_plugin_context_manager.vocabulary as vocabulary
import pytest
from astrbot_plugin_context_manager.calibration import Calibration
from astrbot_plugin_context_manager.prompt_estimates import Estimate
from astrbot_plugin_context_manager.settings import Settings
from astrbot_plugin_context_manager.tokens import TokenCounter
from astrbot_plugin_context_manager.vocabulary import classes_by_script

ROOT = Path(vocabulary.__file__).parent


@pytest.fixture
async def counter():
    made = TokenCounter()
    await made.load()
    return made


async def test_the_vocabulary_loads_from_what_every_host_has(counter):
    assert counter.ready
    assert counter.count_text("你好，世界") < 6


def test_the_hosts_own_estimates_are_remembered_within_a_bound_of_characters(monkeypatch):
    monkeypatch.setattr(host_module, "_ESTIMATED_CHARACTERS", 1000)
    host = host_module.Host(SimpleNamespace(), TokenCounter())
    measure = host.measured_by(Estimate((), None, tuple(Calibration().published), 0.1))
    messages = [{"role": "user", "content": f"{n} " + "x" * (n % 400)} for n in range(2000)]
    first = [measure(message) for message in messages]
    assert [measure(message) for message in messages] == first
    assert 0 < sum(map(len, host._estimates)) <= 1000


async def test_hostile_texts_are_counted_without_an_error(counter):
    for text in ("<|endoftext|>", " " * 1_000_000, "\ud800", "😀" * 1000, ""):
        assert counter.count_text(text) >= 0


async def test_a_missing_vocabulary_is_logged_once_and_counting_goes_on(monkeypatch, caplog):
    monkeypatch.setattr(vocabulary, "_rank_file", lambda: None)
    counter = TokenCounter()
    await counter.load()
    assert not counter.ready and counter.problem
    assert counter.count_text("hello world 你好") > 0
    assert sum("vocabulary" in r.getMessage() for r in caplog.records) == 1


async def test_pictures_and_tool_calls_count(counter):
    plain = counter.count_message({"role": "user", "content": "x"})
    picture = {"type": "image_url", "image_url": {"url": "data:" + "A" * 100_000}}
    assert counter.count_message({"role": "user", "content": [picture]}) == 4 + 765
    call = {"id": "1", "function": {"name": "f", "arguments": "a long argument text"}}
    assert (
        counter.count_message({"role": "assistant", "content": "x", "tool_calls": [call]}) > plain
    )


async def test_25_long_tool_schemas_count(counter):
    schema = {"type": "function", "function": {"name": "f", "description": "word " * 100}}
    assert counter.count_tools([schema] * 25) > 2500


def test_scripts_are_weighed_apart():
    assert round(sum(classes_by_script("字" * 1000))) == 800
    assert round(sum(classes_by_script("a" * 1000))) == 250
    assert round(sum(classes_by_script("か" * 1000))) == 900
    assert round(sum(classes_by_script("😀" * 1000))) == 2000


def test_bad_settings_fall_back_to_their_defaults_one_by_one():
    config = {"recent_context_token_budget": 5, "window_keep_ratio": 0.5, "language": "xx"}
    settings = Settings.from_config(config)
    assert settings.recent_context_token_budget == 100_000
    assert settings.window_keep_ratio == 0.5
    assert Settings.problems(config) == ["language", "recent_context_token_budget"]


def test_the_settings_form_has_exactly_the_settings_with_their_defaults():
    schema = json.loads((ROOT / "_conf_schema.json").read_text(encoding="utf-8"))
    assert {name: item["default"] for name, item in schema.items()} == Settings().model_dump()


@pytest.mark.parametrize(
    "module",
    [
        "context_logic.py",
        "limits.py",
        "message_text.py",
        "projection.py",
        "sections.py",
        "summary_answer.py",
        "summary_text.py",
        "window.py",
    ],
)
def test_the_core_does_not_know_the_host(module):
    tree = ast.parse((ROOT / module).read_text(encoding="utf-8"))
    imported = {
        name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in [getattr(node, "module", None) or node.names[0].name]
    }
    assert not any(name.startswith("astrbot") for name in imported)


def test_only_host_py_imports_the_hosts_core():
    users = [
        path.name
        for path in ROOT.glob("*.py")
        if "astrbot.core" in path.read_text(encoding="utf-8")
    ]
    assert users == ["host.py"]
    assert "astrbot.core.agent.message" in sys.modules
