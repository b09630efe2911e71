"""A bad setting stops nothing, and the form, its texts and the model agree."""

import json
from pathlib import Path

import astrbot_plugin_context_manager.settings as settings_module
import pytest
import yaml
from astrbot_plugin_context_manager.settings import Settings

ROOT = Path(settings_module.__file__).parent


def read(name):
    return json.loads((ROOT / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("name", "bad", "good"),
    [
        ("recent_context_token_budget", [1023, 1_000_001, "x", None, True, []], [1024, 1_000_000]),
        ("summary_target_tokens", [99, 20_001, 1.5, None], [100, 20_000]),
        ("window_keep_ratio", [0.29, 1.01, float("nan"), "x", None], [0.3, 1, 1.0]),
        ("keep_media_turns", [-1, 51, None], [0, 50]),
        ("commands_open_to_everyone", ["maybe", 7, None], [True, False]),
        ("language", ["xx", "", None, 1], ["zh-CN", "en-US"]),
    ],
)
def test_every_setting_has_its_limits_and_falls_back_alone(name, bad, good):
    other = "language" if name != "language" else "keep_media_turns"
    kept = {"language": "en-US", "keep_media_turns": 7}[other]
    for value in bad:
        config = {name: value, other: kept}
        settings = Settings.from_config(config)
        assert getattr(settings, name) == getattr(Settings(), name), value
        assert getattr(settings, other) == kept
        assert Settings.problems(config) == [name]
    for value in good:
        assert getattr(Settings.from_config({name: value}), name) == value
        assert Settings.problems({name: value}) == []


def test_settings_that_the_plugin_does_not_know_are_passed_over():
    assert Settings.from_config({"from_a_newer_version": 1}) == Settings()


def test_every_language_translates_exactly_the_settings_of_the_form():
    schema = read("_conf_schema.json")
    for language in ("zh-CN", "en-US"):
        config = read(f".astrbot-plugin/i18n/{language}.json")["config"]
        assert config.keys() == schema.keys()
        for name, item in schema.items():
            assert set(config[name]) >= {"description", "hint"} & set(item), name


def test_the_texts_in_the_form_are_those_of_its_own_language():
    texts = read(".astrbot-plugin/i18n/zh-CN.json")
    for name, item in read("_conf_schema.json").items():
        for key in ("description", "hint"):
            assert texts["config"][name].get(key) == item.get(key), name
    metadata = yaml.safe_load((ROOT / "metadata.yaml").read_text(encoding="utf-8"))
    for key, text in texts["metadata"].items():
        assert text == metadata[key]
