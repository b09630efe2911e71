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
    (
        "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 98304]",
        98304,
    ),
    ("length of prompt_tokens (57535) must be less than max_seq_len (32768).", 32768),
    ("max_total_tokens (33802) must be less than or equal to max_seq_len (32768)", 32768),
    ("Your request exceeded model token limit: 262144 (requested: 269030)", 262_144),
    ("Request 182387 input tokens exceeds the model's maximum context length 202750", 202_750),
    (
        "The input (233864 tokens) is longer than the model's context length (202752 tokens).",
        202_752,
    ),
    (
        "The decoder prompt (length 21535) is longer than the maximum model length of 16384. For "
        "image inputs, the number of image tokens depends on the number of images.",
        16384,
    ),
    ("Input length (160062 tokens) exceeds the maximum allowed length (59862 tokens).", 59862),
    (
        "You passed 9001 input tokens and requested 1024 output tokens. However, the model's "
        "context length is only 8192 tokens, resulting in a maximum input length of 7168 tokens.",
        7168,
    ),
    (
        "the request exceeds the available context size. try increasing the context size', "
        "'type': 'exceed_context_size_error', 'n_prompt_tokens': 14429, 'n_ctx': 8192",
        8192,
    ),
    ("request (14429 tokens) exceeds the available context size (8192 tokens)", 8192),
    (
        "Prompt contains 40000 tokens, too large for model with 32768 maximum context length",
        32768,
    ),
    (
        "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
        131_072,
    ),
    ("prompt token count of 88000 exceeds the limit of 64000", 64000),
    (
        "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in "
        "300000 tokens. Please reduce the length of the messages.",
        272_000,
    ),
    (
        "`inputs` tokens + `max_new_tokens` must be <= 8193. Given: 9000 `inputs` tokens and 0",
        8193,
    ),
    (
        "Error code: 429 - Request too large for gpt-4o in organization org-x on tokens per min "
        "(TPM): Limit 30000, Requested 47652.",
        30000,
    ),
    (
        "Request too large for model `llama-3.3-70b` on tokens per minute (TPM): Limit 12000, "
        "Requested 17200, please reduce your message size, 'code': 'rate_limit_exceeded'",
        12000,
    ),
]
WITH_ANSWER = [
    (
        "This model's maximum context length is 16384 tokens. However, you requested 122946 "
        "tokens (112946 in the messages, 10000 in the completion).",
        6384,
    ),
    (
        "This endpoint's maximum context length is 202752 tokens. However, you requested about "
        "203889 tokens (183648 of text input, 4241 of tool input, 16000 in the output).",
        186_752,
    ),
    (
        "input length and `max_tokens` exceed context limit: 178959 + 64000 > 200000, decrease "
        "input length or `max_tokens` and try again",
        136_000,
    ),
    (
        "This model's maximum context length is 128000 tokens. However, you requested 65535 "
        "output tokens and your prompt contains at least 62466 input tokens.",
        62465,
    ),
    (
        "This model's maximum context length is 4097 tokens, however you requested 8238 tokens "
        "(8238 in your prompt; 0 for the completion).",
        4097,
    ),
]
UNSTATED = [
    "context_length_exceeded",
    "Input is too long for requested model.",
    "the request exceeds the available context size, try increasing it",
    "Please reduce the length of the messages or completion.",
    "上下文长度超过限制",
    "Error code: 400 {'code': '1261', 'message': 'Prompt exceeds max length'}",
    "Prompt 超长",
    "invalid params, context window exceeds limit (2013)",
    "Your input exceeds the context window of this model. Please adjust your input.",
    "Total tokens of image and text exceed max message tokens",
    "tokens数量超过上限。代表用户的历史数据+问题的字数太多，需要精简用户的输入",
    "prompt too long; exceeded max context length by 1200 tokens",
    "The number of tokens to keep from the initial prompt is greater than the context length",
]
OTHER = [
    "",
    "All chat models failed: APIConnectionError: Connection error.",
    "Error code: 429 - rate limit reached, too many requests",
    "Error code: 400 - scripted error",
    "Error code: 401 - invalid key",
    "您的余额不足",
    "max_tokens must be a positive integer",
    "ThrottlingException: Too many tokens, please wait before trying again.",
    "Rate limit reached for gpt-4o on tokens per min (TPM): Limit 30000, Used 29999",
    "This request would exceed your organization's rate limit of 40,000 input tokens per minute",
    "max_tokens: 100000 > 8192, which is the maximum allowed number of output tokens",
    "max_tokens is too large: 32768. This model supports at most 16384 completion tokens.",
    "Range of max_tokens should be [1, 8192]",
    "image exceeds 5 MB maximum: 6000000 bytes > 5242880 bytes",
    "At least one of the image dimensions exceed max allowed size: 8000 pixels",
    "输入图片大小超过 10MB 限制",
    "消息发送频率超过限制，请稍后再试",
    "您的 token 使用量已超过每日限额",
    "输入的 API Key 已超过有效期",
    "You exceeded your current quota, please check your plan and billing details.",
]


@pytest.mark.parametrize(("text", "limit"), STATED)
def test_a_stated_limit_is_taken_over(text, limit):
    assert says_too_long(text)
    assert limit_after_failure(text, 2_000_000) == limit


@pytest.mark.parametrize(("text", "limit"), WITH_ANSWER)
def test_what_is_kept_for_the_answer_is_no_room_for_the_prompt(text, limit):
    assert says_too_long(text)
    assert limit_after_failure(text, 200_000) == limit


def test_an_answer_that_leaves_no_room_teaches_nothing():
    text = (
        "This endpoint's maximum context length is 131072 tokens. However, you requested about "
        "138956 tokens (7884 of text input, 131072 in the output)."
    )
    assert limit_after_failure(text, 7884) is None


def test_a_prompt_far_below_a_stated_limit_was_not_what_failed():
    assert limit_after_failure("maximum context length is 131072 tokens", 8000) is None


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
