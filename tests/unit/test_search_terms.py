"""The terms of texts and questions in every script, and of hostile input."""

import sqlite3

import pytest
from astrbot_plugin_context_manager.search_terms import (
    index_terms,
    match_expression,
    query_terms,
)
from hypothesis import given, settings
from hypothesis import strategies as st


def found_by_fts(text, terms, operator="AND"):
    db = sqlite3.connect(":memory:")
    db.execute("CREATE VIRTUAL TABLE f USING fts5(t, content='', detail=none, tokenize='ascii')")
    db.execute("INSERT INTO f (rowid, t) VALUES (1, ?)", (" ".join(index_terms(text)),))
    try:
        expression = match_expression(terms, operator)
        return bool(db.execute("SELECT rowid FROM f WHERE f MATCH ?", (expression,)).fetchall())
    finally:
        db.close()


def test_han_is_indexed_by_characters_and_overlapping_pairs():
    assert index_terms("重跑机") == ["重", "重跑", "跑", "跑机", "机"]


@pytest.mark.parametrize("text", ["ひらがな", "カタカナ", "한국어", "龘𪛖𠀀"])
def test_kana_hangul_and_rare_han_are_indexed_like_han(text):
    assert text[1:3] in index_terms(text)
    assert text[-1] in index_terms(text)


def test_latin_words_are_lower_cased_stemmed_and_without_accents():
    assert index_terms("Running PAINTINGS café") == ["run", "paint", "cafe"]


def test_full_width_and_composed_forms_are_the_same_terms():
    assert index_terms("ＡＢＣ１２") == index_terms("abc12")
    assert index_terms("カ\u3099") == index_terms("ガ")


def test_mixed_text_is_cut_at_the_change_of_script():
    assert query_terms("重跑gen-itgc后") == ["重", "重跑", "跑", "gen", "itgc", "后"]


def test_emoji_are_terms():
    assert "🎉" in index_terms("好耶🎉🎉")


def test_a_question_loses_its_stop_words_and_stop_characters():
    assert query_terms("When did Caroline go to the museum?") == ["carolin", "go", "museum"]
    assert "的" not in query_terms("我的猫")


def test_a_question_of_stop_words_only_keeps_them():
    assert query_terms("的") == ["的"]
    assert query_terms("who are you") == ["who", "are", "you"]


def test_a_pair_with_one_stop_character_still_finds():
    assert "我妈" in query_terms("我妈")


@pytest.mark.parametrize("text", ["", "   ", '"', "*", "%", "_", "。，！", "\x00", "\ud800"])
def test_text_without_words_has_no_terms(text):
    assert query_terms(text) == []
    assert index_terms(text) == []


@pytest.mark.parametrize("text", ["NEAR(", "AND", "a OR b", 'x"y', "t:cat", "-cat", "cat*", "^cat"])
def test_operators_of_the_index_are_plain_words(text):
    assert found_by_fts(f"before {text} behind", query_terms(text))


def test_very_long_texts_have_bounded_terms():
    assert len(index_terms("字" * 1_000_000)) <= 40_000
    assert len(query_terms("".join(map(chr, range(0x4E00, 0x9000))))) <= 4_000
    assert max(map(len, index_terms("x" * 1_000_000))) <= 40


@settings(deadline=None)
@given(st.text(max_size=60))
def test_any_text_is_found_by_every_one_of_its_terms(text):
    terms = index_terms(text)
    if terms:
        assert found_by_fts(text, list(dict.fromkeys(terms)))


@settings(deadline=None)
@given(st.text(alphabet="天地玄黄宇宙洪荒のカ한a1 ,", max_size=30), st.data())
def test_the_terms_of_a_piece_of_cjk_are_terms_of_the_whole(text, data):
    start = data.draw(st.integers(0, len(text)))
    piece = text[start : start + 4]
    if not any(character in "a1" for character in piece):
        assert set(index_terms(piece)) <= set(index_terms(text))
