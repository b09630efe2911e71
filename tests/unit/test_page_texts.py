"""The page's texts: complete, the same in both languages, and used."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LANGUAGES = ("zh-CN", "en-US")


def flat(tree: dict, prefix: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in tree.items():
        path = f"{prefix}{key}"
        found |= flat(value, f"{path}.") if isinstance(value, dict) else {path: value}
    return found


def texts(language: str) -> dict[str, str]:
    path = ROOT / ".astrbot-plugin" / "i18n" / f"{language}.json"
    return flat(json.loads(path.read_text(encoding="utf-8")))


def scripts() -> str:
    folder = ROOT / "pages" / "memory"
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.js")))


def test_both_languages_have_the_same_keys_and_placeholders() -> None:
    chinese, english = (texts(language) for language in LANGUAGES)
    assert chinese.keys() == english.keys()
    for key, text in chinese.items():
        assert text and english[key], key
        assert set(re.findall(r"\{\w+\}", text)) == set(re.findall(r"\{\w+\}", english[key])), key


def test_every_key_that_the_page_names_has_a_text() -> None:
    known = texts("en-US")
    for key in re.findall(r"""\bt\(\s*"([\w.]+)\"""", scripts()):
        assert f"pages.memory.{key}" in known, key


def test_the_settings_form_is_translated_completely() -> None:
    schema = json.loads((ROOT / "_conf_schema.json").read_text(encoding="utf-8"))
    for language in LANGUAGES:
        known = texts(language)
        for name, entry in schema.items():
            for part in ("description", "hint"):
                assert (f"config.{name}.{part}" in known) == bool(entry.get(part)), name


@pytest.mark.parametrize("word", ["innerHTML =", "outerHTML", "insertAdjacentHTML", "eval("])
def test_the_page_never_parses_markup_itself(word: str) -> None:
    assert word not in scripts()


def test_vendored_files_carry_version_and_licence() -> None:
    folder = ROOT / "pages" / "memory" / "vendor"
    notes = (folder / "README.md").read_text(encoding="utf-8")
    for path in folder.iterdir():
        assert path.name == "README.md" or f"`{path.name}`" in notes, path.name
