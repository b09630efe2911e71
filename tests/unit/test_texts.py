"""Users read whole sentences in their language, whatever the values."""

import string

import pytest
from astrbot_plugin_context_manager.texts import _TEXTS, LANGUAGES, Texts, both


def placeholders(text):
    return {name for _, name, _, _ in string.Formatter().parse(text) if name}


def test_every_text_has_both_languages_with_the_same_placeholders():
    for key, (chinese, english) in _TEXTS.items():
        assert chinese and english and chinese != english
        assert placeholders(chinese) == placeholders(english), key


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("key", sorted(_TEXTS))
def test_every_text_can_be_filled_with_anything(key, language):
    values = dict.fromkeys(placeholders(_TEXTS[key][0]), "{braces} %s 😀")
    assert Texts(language).get(key, **values)
    assert Texts(language).get(key)


def test_numbers_are_grouped_and_a_missing_value_shows_as_unknown():
    text = Texts("en-US").get("compress_done", covered=1234567, read=4, before=None, after=5)
    assert "1,234,567" in text and "? → 5" in text


def test_an_unknown_language_reads_as_the_default_one():
    assert Texts("xx").get("no_provider") == Texts("zh-CN").get("no_provider")


def test_an_unknown_key_is_a_programming_error():
    with pytest.raises(KeyError):
        Texts("zh-CN").get("no_such_key")


def test_a_text_for_the_page_has_both_languages_and_quotes_the_same_in_each():
    halves = [Texts(language).get("model_failed", error="a / b") for language in LANGUAGES]
    text = both("model_failed", error="a / b")
    assert text == " / ".join(halves)
    # The page takes the half before or after the slash in the middle.
    assert len(text.split(" / ")) % 2 == 0
