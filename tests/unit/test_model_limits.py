"""A context that proved too long lowers a model's limit, for some days."""

import pytest
from astrbot_plugin_context_manager.model_limits import (
    FORGOTTEN_AFTER_DAYS,
    LEAST_LIMIT,
    LearnedLimit,
    limit_after_failure,
    says_too_long,
)

DAY = 86_400

STATED = [
    (
        "Error code: 400 - {'error': {'message': \"This model's maximum context length is 8192 "
        'tokens. However, your messages resulted in 9001 tokens."}}',
        8192,
    ),
    ("prompt is too long: 210000 tokens > 200000 maximum", 200_000),
    (
        "The input token count (1196265) exceeds the maximum number of tokens allowed (1048575).",
        1_048_575,
    ),
    ("InvalidParameter: Range of input length should be [1, 30720]", 30_720),
    ("Input length 9000 exceeds the maximum length 8,192", 8192),
    ("输入超过最大长度 4096，请缩短后重试", 4096),
]
UNSTATED = [
    "context_length_exceeded",
    "Input is too long for requested model.",
    "the request exceeds the available context size, try increasing it",
    "Please reduce the length of the messages or completion.",
    "上下文长度超过限制",
]
OTHER = [
    "",
    "All chat models failed: APIConnectionError: Connection error.",
    "Error code: 429 - rate limit reached, too many requests",
    "Error code: 400 - scripted error",
    "Error code: 401 - invalid key",
    "您的余额不足",
    "max_tokens must be a positive integer",
]


@pytest.mark.parametrize(("text", "limit"), STATED)
def test_a_stated_limit_is_taken_over(text, limit):
    assert says_too_long(text)
    assert limit_after_failure(text, 2_000_000) == limit


@pytest.mark.parametrize("text", UNSTATED)
def test_without_a_number_a_good_part_of_what_failed_is_kept(text):
    assert says_too_long(text)
    assert limit_after_failure(text, 10_000) == 7000


@pytest.mark.parametrize("text", OTHER)
def test_other_errors_say_nothing_about_length(text):
    assert not says_too_long(text)


def test_a_stated_limit_above_the_estimate_still_lowers_something():
    text = "maximum context length is 8192 tokens"
    assert limit_after_failure(text, 6000) == 4200


def test_a_request_stays_possible():
    assert limit_after_failure("context_length_exceeded", 300) == LEAST_LIMIT
    assert limit_after_failure("maximum context length is 100 tokens", 5000) >= LEAST_LIMIT


def test_a_limit_grows_back_in_daily_steps_and_is_forgotten():
    learned = LearnedLimit(10_000, 1_000_000)
    at = [learned.at(1_000_000 + day * DAY) for day in range(FORGOTTEN_AFTER_DAYS)]
    assert at[0] == 10_000 and at == sorted(set(at))
    assert learned.at(1_000_000 + FORGOTTEN_AFTER_DAYS * DAY) is None


def test_a_limit_does_not_move_within_a_day():
    learned = LearnedLimit(10_000, 1_000_000)
    assert {learned.at(1_000_000 + seconds) for seconds in (0, 3600, DAY - 1)} == {10_000}


def test_a_clock_that_went_back_changes_nothing():
    assert LearnedLimit(10_000, 1_000_000).at(0) == 10_000
