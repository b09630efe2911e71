"""What providers report corrects the estimates, and nothing they report can spoil them."""

import json
import math
import time

import pytest
from astrbot_plugin_context_manager.calibration import (
    FEATURES,
    NOTHING,
    PROMPT,
    Calibration,
    add,
    minus,
    plausible,
)
from astrbot_plugin_context_manager.tokens import TokenCounter
from astrbot_plugin_context_manager.vocabulary import classes_by_script
from hypothesis import given, settings
from hypothesis import strategies as st

from .synthetic import CHINESE_CHEAP, CHINESE_EXPENSIVE, Provider, counts_of_prompt, system, talk

PROVIDERS = [
    Provider(CHINESE_EXPENSIVE),
    Provider(CHINESE_CHEAP, message=6, prompt=3, tools=0.8),
    Provider((1.0,) * 6, message=4, prompt=900),
]


def prompts(seed, turns=30):
    """The growing prompts of one conversation."""
    messages = [system()]
    for question, answer in talk(seed, turns):
        messages.append(question)
        yield list(messages)
        messages.append(answer)


def taught(provider, talks=6):
    """A state that has seen so many conversations, and the counter."""
    tokens, calibration = TokenCounter(), Calibration()
    for seed in range(talks):
        last = None
        for messages in prompts(seed):
            counts, reported = counts_of_prompt(tokens, messages), provider.count(messages)
            if last is None:
                calibration.observe(counts, reported)
            else:
                calibration.observe(minus(counts, last[0]), reported - last[1])
            last = counts, reported
    return calibration, tokens


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_known_model_is_estimated_within_three_per_cent_in_a_new_conversation(provider):
    calibration, tokens = taught(provider)
    errors = []
    for seed in range(100, 120):
        messages = next(iter(prompts(seed)))
        messages = [*messages, *(m for turn in talk(seed + 50, 10) for m in turn)]
        estimated = calibration.estimate(counts_of_prompt(tokens, messages))
        errors.append(abs(estimated / provider.count(messages) - 1))
    assert sum(errors) / len(errors) < 0.03


@pytest.mark.parametrize("provider", PROVIDERS)
def test_without_any_report_the_estimate_is_far_off_for_some(provider):
    tokens = TokenCounter()
    messages = list(prompts(1))[-1]
    estimated = Calibration().estimate(counts_of_prompt(tokens, messages))
    assert 0.4 < estimated / provider.count(messages) < 1.6


def test_one_wrong_report_hardly_moves_a_calibrated_state():
    provider = PROVIDERS[0]
    calibration, tokens = taught(provider)
    counts = counts_of_prompt(tokens, list(prompts(7))[-1])
    before = calibration.estimate(counts)
    calibration.observe(counts, before * 3)
    assert calibration.estimate(counts) == pytest.approx(before, rel=0.12)


def test_a_report_contradicts_only_what_is_known():
    calibration, tokens = taught(PROVIDERS[0])
    counts = counts_of_prompt(tokens, list(prompts(7))[-1])
    expected = calibration.estimate(counts)
    assert calibration.contradicts(expected, counts, int(expected * 0.8))
    assert calibration.contradicts(expected, counts, int(expected * 1.25))
    assert not calibration.contradicts(expected, counts, int(expected * 0.9))
    expected = Calibration().estimate(counts)
    assert not Calibration().contradicts(expected, counts, int(expected * 0.6))
    assert not Calibration().contradicts(expected, counts, int(expected * 1.5))
    assert Calibration().contradicts(expected, counts, int(expected * 0.2))


def test_tools_that_were_never_seen_contradict_nothing():
    calibration, tokens = taught(PROVIDERS[0])
    messages = list(prompts(7, 2))[-1]
    counts = counts_of_prompt(tokens, messages, tool_tokens=4000)
    reported = PROVIDERS[0].count(messages, tool_tokens=2600)
    assert not calibration.contradicts(calibration.estimate(counts), counts, reported)


def test_only_the_third_contradiction_of_the_same_kind_starts_anew():
    calibration, _ = taught(PROVIDERS[0])
    assert not calibration.contradict(1000.0, 700)
    assert not calibration.contradict(1100.0, 770)
    assert calibration.calibrated
    assert calibration.contradict(1200.0, 850)
    assert not calibration.calibrated and calibration.contradictions == 0


@pytest.mark.parametrize(
    "reports",
    [
        [(1000.0, 900)] * 9,
        [(1000.0, 700), (1100.0, 400), (1200.0, 840), (1300.0, 500), (1400.0, 990)],
        [(2000.0 * 1.2**power, 900) for power in range(9)],
    ],
)
def test_contradictions_of_different_kinds_or_of_one_prompt_start_nothing(reports):
    calibration, _ = taught(PROVIDERS[0])
    assert not any(calibration.contradict(*report) for report in reports)
    assert calibration.calibrated


def test_an_agreeing_report_ends_the_row_of_contradictions():
    calibration, tokens = taught(PROVIDERS[0])
    counts = counts_of_prompt(tokens, list(prompts(7))[-1])
    calibration.contradict(1000.0, 700)
    calibration.contradict(1100.0, 770)
    calibration.observe(counts, calibration.estimate(counts))
    assert not calibration.contradict(1200.0, 840)


@pytest.mark.parametrize(
    ("text", "least", "most"),
    [("Please review the numbers. " * 50, 0.15, 0.16), ("我们讨论项目的进度安排" * 50, 0.35, 0.4)],
)
def test_the_margin_of_an_unknown_model_follows_what_is_written(text, least, most):
    counts = TokenCounter().counts_of(system(text))
    assert least <= Calibration().margin(False, counts) <= most


def test_a_model_that_changes_is_learned_anew():
    calibration, tokens = taught(PROVIDERS[0])
    for size in (1000.0, 1100.0, 1200.0):
        calibration.contradict(size, round(size / 2))
    new = PROVIDERS[1]
    for messages in prompts(3):
        calibration.observe(counts_of_prompt(tokens, messages), new.count(messages))
    messages = list(prompts(3))[-1]
    estimated = calibration.estimate(counts_of_prompt(tokens, messages))
    assert estimated == pytest.approx(new.count(messages), rel=0.03)


@pytest.mark.parametrize(
    "reported", [None, 0, -5, True, 3.5, math.nan, math.inf, "120", 10**9, [1], {}]
)
def test_absurd_numbers_are_no_prompt_sizes(reported):
    assert not plausible(reported)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.lists(st.floats(-1e6, 1e6), min_size=len(FEATURES), max_size=len(FEATURES)),
            st.floats(-1e8, 1e8),
        ),
        max_size=40,
    )
)
def test_whatever_is_reported_the_state_stays_usable(reports):
    calibration = Calibration()
    for counts, tokens in reports:
        calibration.observe(tuple(counts), tokens)
    numbers = [*calibration.weights, *(v for row in calibration.covariance for v in row)]
    assert all(map(math.isfinite, numbers))
    assert all(0 <= weight <= 50_000 for weight in calibration.weights)
    assert calibration.estimate((100.0,) * len(FEATURES)) > 0


def test_a_stored_state_estimates_to_the_last_bit_the_same():
    calibration, tokens = taught(PROVIDERS[1], talks=2)
    restored = Calibration.from_json(json.loads(json.dumps(calibration.as_json())))
    counts = counts_of_prompt(tokens, list(prompts(9))[-1])
    assert restored.estimate(counts) == calibration.estimate(counts)
    assert restored.observations == calibration.observations


@pytest.mark.parametrize(
    "broken",
    [
        None,
        [],
        {},
        {"weights": [1.0], "covariance": [[1.0]], "observations": 3},
        {"weights": "x", "covariance": [], "observations": 0},
        Calibration().as_json() | {"observations": None},
        Calibration().as_json() | {"weights": [math.nan] * len(FEATURES)},
        Calibration().as_json() | {"covariance": [[1.0]] * len(FEATURES)},
    ],
)
def test_a_broken_stored_state_is_a_new_one(broken):
    assert Calibration.from_json(broken).as_json() == Calibration().as_json()


def test_a_thousand_kana_or_emoji_are_counted_by_script_and_corrected_by_reports():
    kana, emoji = classes_by_script("か" * 1000), classes_by_script("😀" * 1000)
    assert kana[1] == pytest.approx(900) and emoji[5] == pytest.approx(2000)
    provider, tokens, calibration = Provider(CHINESE_CHEAP), TokenCounter(), Calibration()
    messages, last = [system()], None
    for text in ("か" * 1000, "😀" * 1000, "か" * 400 + "😀" * 300, "😀" * 500):
        messages.append(system(text))
        counts, reported = counts_of_prompt(tokens, messages), provider.count(messages)
        if last is not None:
            calibration.observe(minus(counts, last[0]), reported - last[1])
        last = counts, reported
    for text in ("か" * 1000, "😀" * 1000):
        estimated = calibration.estimate(tokens.counts_of(system(text)))
        assert estimated == pytest.approx(provider.count_text(text) + 6, rel=0.05)


def test_counts_add_up():
    assert minus(add(PROMPT, PROMPT), PROMPT) == PROMPT
    assert add(NOTHING, PROMPT) == PROMPT


def test_a_message_is_counted_once():
    tokens = TokenCounter()
    messages = [m for turn in talk(1, 2500) for m in turn]
    spent = []
    for _ in range(4):
        started = time.perf_counter()
        tokens.counts_of_all(messages)
        spent.append(time.perf_counter() - started)
    assert min(spent[1:]) < spent[0] / 2
