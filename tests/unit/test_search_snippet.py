"""A snippet shows the hit, marked, and never more or other text than the message."""

import pytest
from astrbot_plugin_context_manager.search_snippet import HIT_END, HIT_START, snippet
from astrbot_plugin_context_manager.search_terms import query_terms
from hypothesis import given
from hypothesis import strategies as st

LONG = "前面有很多别的内容。" * 40 + "然后重跑gen-itgc后就好了" + "后面还有很多别的内容。" * 40


def cut(text, question, **more):
    return snippet(text, query_terms(question), question, **more)


def plain(text):
    return text.replace(HIT_START, "").replace(HIT_END, "").strip("…")


def test_a_literal_hit_is_marked_as_a_whole():
    assert cut("我们重跑gen-itgc后再看", "重跑gen-itgc后") == "我们⟪重跑gen-itgc后⟫再看"


def test_case_does_not_matter():
    assert cut("The Cafe is open", "cafe") == "The ⟪Cafe⟫ is open"


def test_a_letter_that_grows_in_lower_case_moves_no_mark():
    assert cut("İstanbul opens at nine", "opens late") == "İstanbul ⟪opens⟫ at nine"


def test_an_inflected_word_is_marked():
    assert cut("She painted a lake", "painting") == "She ⟪painted⟫ a lake"


def test_touching_hits_are_one_mark():
    assert cut("订好了生日蛋糕和花", "生日蛋糕吗") == "订好了⟪生日蛋糕⟫和花"


def test_a_hit_far_inside_is_shown_with_what_stands_around_it():
    text = cut(LONG, "重跑gen-itgc后")
    assert "⟪重跑gen-itgc后⟫就好了" in text
    assert text.startswith("…")
    assert text.endswith("…")
    assert len(plain(text)) <= 120


def test_the_place_with_most_hits_is_shown():
    text = "苹果。" + "无关的话。" * 50 + "苹果和香蕉和葡萄。" + "无关的话。" * 50
    assert "香蕉" in cut(text, "苹果 香蕉 葡萄都有什么")


def test_without_a_hit_the_beginning_is_shown_unmarked():
    assert cut("一句没有关系的话", "香菜") == "一句没有关系的话"


def test_marks_in_the_message_itself_are_no_marks():
    assert cut("假⟪标⟫记", "香菜") == "假《标》记"


def test_lines_are_joined():
    assert cut("第一行\n\n第二行", "第二") == "第一行 ⟪第二⟫行"


@pytest.mark.parametrize(
    "text", ["", " ", "\n", "İstanbul", "ﬁne ﬀ ㌀ 香菜", "🎉" * 500, "x" * 50_000]
)
def test_any_text_gives_a_short_snippet(text):
    assert len(plain(cut(text, "香菜 fine İ"))) <= 120


@given(st.text(max_size=200), st.text(max_size=20))
def test_a_snippet_without_its_marks_is_a_piece_of_the_message(text, question):
    whole = " ".join(text.replace(HIT_START, "《").replace(HIT_END, "》").split())
    shown = cut(text, question).replace(HIT_START, "").replace(HIT_END, "")
    assert shown in whole or shown.removeprefix("…").removesuffix("…") in whole
