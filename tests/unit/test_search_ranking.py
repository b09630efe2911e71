"""The second stage prefers what answers a question, not what repeats a word."""

import pytest
from astrbot_plugin_context_manager.search_ranking import (
    Passage,
    Statistics,
    TermCounts,
    scores,
)
from astrbot_plugin_context_manager.search_terms import query_terms

FILLER = [f"今天天气不错，出去走走第{n}圈" for n in range(30)]


def ranked(question, texts, passages=None):
    """The positions of texts or passages, best first."""
    counts = [TermCounts.of(text) for text in texts]
    passages = passages or [Passage(count) for count in counts]
    found = scores(question, query_terms(question), passages, Statistics.of(counts))
    return sorted(range(len(found)), key=lambda index: -found[index]), found


def test_a_text_with_more_of_the_question_comes_first():
    order, _ = ranked("生日蛋糕", ["生日快乐", "订好了生日蛋糕", *FILLER])
    assert order[:2] == [1, 0]


def test_a_rare_word_counts_more_than_a_common_one():
    order, _ = ranked("天气 麦田", ["麦田里的守望", *FILLER])
    assert order[0] == 0


def test_repeating_one_word_does_not_beat_finding_both():
    order, _ = ranked("red bicycle", ["red red red red red", "a bicycle, a red one", *FILLER])
    assert order[0] == 1


def test_a_long_answer_is_hardly_held_back():
    long = "关于猫粮：" + "这一款的配料表很干净，" * 8
    order, _ = ranked("猫粮配料", ["猫", long, *FILLER])
    assert order[0] == 1


def test_the_answer_behind_a_matching_question_is_lifted():
    question_text, answer = TermCounts.of("你最喜欢哪家餐厅"), TermCounts.of("老街那家")
    texts = ["你最喜欢哪家餐厅", "老街那家", "老街那家", *FILLER]
    passages = [Passage(answer), Passage(answer, {-1: question_text})]
    _, found = ranked("老街那家餐厅", texts, passages)
    assert found[1] > found[0]


def test_the_message_before_counts_more_than_the_one_behind():
    own, other = TermCounts.of("嗯"), TermCounts.of("红烧肉")
    passages = [Passage(own, {1: other}), Passage(own, {-1: other}), Passage(own, {7: other})]
    _, found = ranked("红烧肉", ["嗯", "红烧肉", *FILLER], passages)
    assert found[1] > found[0] > found[2] == 0


def test_a_named_sender_and_a_named_day_are_preferred():
    own = TermCounts.of("做了红烧肉")
    passages = [Passage(own), Passage(own, sender="小明"), Passage(own, on_named_day=True)]
    order, _ = ranked("小明做的红烧肉", ["做了红烧肉", *FILLER], passages)
    assert order == [2, 1, 0]


@pytest.mark.parametrize("question", ["", "的", "没有这个词"])
def test_what_has_no_term_of_the_question_scores_nothing(question):
    _, found = ranked(question, ["abc", "def"])
    assert found == [0, 0]


def test_statistics_of_nothing_are_harmless():
    assert scores("猫", ["猫"], [], Statistics.of([])) == []
    assert scores("猫", ["猫"], [Passage(TermCounts.of("猫"))], Statistics.of([])) > [0]


def test_a_term_more_frequent_than_the_collection_keeps_a_positive_weight():
    assert Statistics(3, {"猫": 9}, 5.0).weights(["猫"])["猫"] > 0
