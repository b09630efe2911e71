"""Where a text is cut, no character that is made of several is split."""

import pytest
from astrbot_plugin_context_manager.message_text import TranscriptMessage, beginning, shorten
from astrbot_plugin_context_manager.summary_plan import steps

EMOJI = {
    "family": "👩\u200d👩\u200d👧\u200d👦",
    "flag": "🇨🇳",
    "skin": "👍🏽",
    "keycap": "1\ufe0f\u20e3",
    "region": "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
    "accent": "e\u0301",
}


@pytest.fixture(params=EMOJI.values(), ids=EMOJI)
def emoji(request):
    return request.param


def is_whole(text: str, emoji: str) -> bool:
    return not text.replace(emoji, "")


def test_a_long_text_is_shortened_between_characters(emoji):
    for head in range(100, 100 + len(emoji)):
        start, _, rest = shorten(emoji * 200, head, head).partition("\n…[省略")
        assert is_whole(start, emoji)
        assert is_whole(rest.partition("]…\n")[2], emoji)


def test_an_excerpt_ends_between_characters(emoji):
    for length in range(20, 20 + len(emoji)):
        cut = beginning(emoji * 50, length)
        assert is_whole(cut.removesuffix("…"), emoji)
        assert len(cut) <= length


def test_a_text_that_is_short_enough_is_kept_as_it_is(emoji):
    assert beginning(emoji, len(emoji)) == emoji


def test_a_message_too_long_for_a_step_is_split_between_characters(emoji):
    message = TranscriptMessage(0, "user", emoji * 301)
    pieces = [piece.text.partition(") ")[2] for [piece] in steps([message], 200, len)]
    assert "".join(pieces) == message.text
    assert all(is_whole(piece, emoji) for piece in pieces)
