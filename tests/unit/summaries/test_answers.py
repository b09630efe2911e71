"""Of a model's answer only the summary is kept, and what is no summary is refused."""

import contextlib

import pytest
from astrbot_plugin_context_manager.context_logic import (
    FIXED_FRAME,
    SUMMARY_FRAME,
    with_sections,
)
from astrbot_plugin_context_manager.errors import CompressionRefused
from astrbot_plugin_context_manager.summary_answer import clean_answer, excerpt, unwrapped

from ..growth import IN_LINE, growth

SUMMARY = "## 事实\n- 小明住在广州天河路12号"


def reason(answer, **more):
    with pytest.raises(CompressionRefused) as raised:
        clean_answer(answer, **more)
    return raised.value.reason_key


@pytest.mark.parametrize(
    "answer",
    [
        f"<think>hm</think>\n{SUMMARY}",
        f"<think a='1'>line\n\nline</think>{SUMMARY}",
        f"<thinking>a</thinking>{SUMMARY}<reasoning>c</reasoning>",
        f"<THINK>a</Think >{SUMMARY}",
        f"<think>a <think>b</think> c</think>{SUMMARY}",
        f"<think>a</thinking>{SUMMARY}",
        f"reasoning without a start</think>\n\n{SUMMARY}",
        f"{SUMMARY}\n<think>never closed",
        f"◁think▷a◁/think▷{SUMMARY}",
        f"<seed:think>a</seed:think>{SUMMARY}",
        f"[THINK]a[/THINK]{SUMMARY}",
        f"<|begin_of_thought|>a<|end_of_thought|>{SUMMARY}",
        f"<|think|>a<|/think|>{SUMMARY}",
        f"＜think＞a＜/think＞{SUMMARY}",
        f"&lt;think&gt;a&lt;/think&gt;{SUMMARY}",
        f"<analysis>a</analysis><reflection>b</reflection>{SUMMARY}",
        f"<antThinking>a</antThinking><scratchpad>b</scratchpad>{SUMMARY}",
        f"<thought_process>a</thought_process>{SUMMARY}",
        f"a[/THINK]{SUMMARY}",
        f"<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>{SUMMARY}",
        f"<|channel|>analysis<|message|>a<|channel|>final<|message|>{SUMMARY}<|return|>",
    ],
)
def test_reasoning_is_never_kept(answer):
    assert clean_answer(answer) == SUMMARY


@pytest.mark.parametrize(
    "line",
    [
        "好的，以下是这段对话的摘要：",
        "以下是更新后的摘要：",
        "Sure, here is the summary:",
    ],
)
def test_a_line_that_only_announces_the_summary_comes_off(line):
    assert clean_answer(f"{line}\n\n{SUMMARY}") == SUMMARY
    assert clean_answer(f"<think>a</think>{line}\n```\n{SUMMARY}\n```") == SUMMARY


@pytest.mark.parametrize(
    "answer",
    [
        "好的，我记住了，你住在广州天河路12号。",
        "好的！周五见。",
        "当然可以，周三给你。",
        "没问题，我来安排。",
        "明白了，预算按 38,000 元控制。",
        "你好！有什么可以帮你的吗？",
        "哈哈，这个主意不错",
        "不客气，有问题随时找我",
        "新的电话是 400-810-2345。还有什么需要我帮忙的吗？",
        "助手：周三给测试，周五发布。",
        "Sure! I'll remember that you live in Paris.",
        "Of course. The release is on Friday.",
        "Hello! How can I help you today?",
        "You're welcome, Ann.",
        "I’d be happy to help with the release.",
        "Got it, Ann lives in Paris.",
        "The capital of France is Paris. Let me know if you need anything else!",
        "It is 12 degrees. Would you like me to check tomorrow's weather?",
        "assistant: The train leaves at nine.",
    ],
)
def test_an_answer_to_the_chat_never_becomes_a_summary(answer):
    assert reason(answer) == "answer_to_chat"


def test_a_repetition_of_what_the_assistant_said_is_no_summary():
    said = "The train to Paris leaves at nine from platform four, every day."
    assert reason(f"{said}\n", spoken=["hello", said]) == "answer_to_chat"
    assert clean_answer(said, spoken=["hello"]) == said


def test_a_short_summary_may_equal_a_message():
    assert clean_answer("小明住在广州", spoken=["小明住在广州"]) == "小明住在广州"


@pytest.mark.parametrize(
    "answer",
    [
        "## Facts\n- Sure, Ann said, and came.",
        "好的餐厅在天河路，小明推荐。",
        "当然区分工作日和周末：周五发布。",
        "Okay Corral is the name of Ann's bar.",
        "- 你好咖啡馆是约定的地点",
        "Yesterday Ann moved to Paris.",
        "Hire date of Ann: 1 May.",
        "收到的货款是 38,000 元。",
        "小明问有什么可以帮忙的，Ann 说明天搬家。",
    ],
)
def test_a_summary_that_begins_like_an_answer_is_kept(answer):
    assert clean_answer(answer) == answer


def test_a_reasoning_tag_that_is_only_talked_about_stays():
    text = "## 事实\n- 用户问 `<think>` 和 `</think>` 怎么去掉"
    assert clean_answer(text) == text


@pytest.mark.parametrize(
    "answer",
    [
        f"```\n{SUMMARY}\n```",
        f"```markdown\n{SUMMARY}\n```  \n",
        f"~~~\n{SUMMARY}\n~~~",
        f"````md\n{SUMMARY}\n````",
        f"```markdown\n{SUMMARY}",
        f"<think>a</think>\n```markdown\n{SUMMARY}\n```",
        f"```markdown\n<think>a</think>\n{SUMMARY}\n```",
        f"<summary>\n```\n{SUMMARY}\n```\n</summary>",
    ],
)
def test_a_fence_round_the_whole_answer_comes_off(answer):
    assert clean_answer(answer) == SUMMARY


def test_a_fence_on_one_line_comes_off():
    assert clean_answer("```小明住在广州```") == "小明住在广州"


@pytest.mark.parametrize(
    "answer",
    [
        "## facts\n```py\ncode\n```\nmore",
        "```py\nfirst\n```\ntext\n```py\nlast\n```",
        "```\nfirst\n```\ntext\n```\nlast\n```",
    ],
)
def test_code_inside_a_summary_stays(answer):
    assert clean_answer(answer) == answer


def test_code_inside_a_fenced_summary_stays():
    inner = "## facts\n```py\ncode\n```\nmore"
    assert clean_answer(f"```md\n{inner}\n```") == inner


@pytest.mark.parametrize(
    "wrapper",
    [
        "===== AI Summary =====",
        "----- AI Summary -----",
        "===== Fixed Memory =====",
        "  ===== ai summary =====  ",
        f"===== AI Summary =====\n{SUMMARY_FRAME}\n",
        f"===== Fixed Memory =====\n{FIXED_FRAME}\n",
        "<summary_so_far>",
        "**===== AI Summary =====**",
        "# ===== AI Summary =====",
    ],
)
def test_the_plugins_own_wrapper_lines_come_off(wrapper):
    assert clean_answer(f"{wrapper}\n{SUMMARY}") == SUMMARY


@pytest.mark.parametrize("tag", ["summary", "answer", "Output", "final_answer"])
def test_a_tag_round_the_whole_answer_comes_off(tag):
    assert clean_answer(f"<think>a</think><{tag}>{SUMMARY}</{tag}>") == SUMMARY
    assert clean_answer(f"```\n<{tag}>\n{SUMMARY}\n</{tag}>\n```") == SUMMARY
    inside = f"{SUMMARY}\n- 小明写了 <{tag}>a</{tag}>"
    assert clean_answer(inside) == inside


def test_a_token_round_the_whole_answer_comes_off():
    thought = "<|begin_of_thought|>a<|end_of_thought|>"
    whole = f"{thought}\n<|begin_of_solution|>{SUMMARY}<|end_of_solution|>"
    assert clean_answer(whole) == SUMMARY


def test_what_the_plugin_sends_as_a_section_comes_back_as_the_bare_summary():
    assert unwrapped(with_sections("", "", SUMMARY)) == SUMMARY


def test_lone_surrogates_are_replaced():
    assert clean_answer("a\ud800b") == "a\ufffdb"


@pytest.mark.parametrize("answer", ["", " \n\t", None, "```\n```", "===== AI Summary ====="])
def test_nothing_left_is_an_empty_answer(answer):
    assert reason(answer) == "answer_empty"


@pytest.mark.parametrize(
    "answer",
    [
        "<think>x</think>",
        "<think>x",
        "x</think>",
        "<think>",
        "[THINK]x",
        "<|channel|>analysis<|message|>never came to an end",
    ],
)
def test_reasoning_alone_is_named_as_such(answer):
    assert reason(answer) == "answer_reasoning_only"


def test_an_empty_answer_with_reasoning_elsewhere_is_reasoning_alone():
    assert reason("", reasoning="## 事实") == "answer_reasoning_only"


@pytest.mark.parametrize("finish", ["length", "max_tokens", "MAX_TOKENS"])
def test_an_answer_that_was_cut_off_is_no_summary(finish):
    assert reason(SUMMARY, finish=finish) == "answer_cut_off"
    assert reason("", reasoning="long", finish=finish) == "answer_cut_off"


def test_an_answer_that_was_filtered_is_no_summary():
    assert reason(SUMMARY, finish="content_filter") == "answer_refused"


def test_an_answer_of_role_err_is_a_failure_with_its_text():
    with pytest.raises(CompressionRefused) as raised:
        clean_answer("quota\nexceeded", role="err")
    assert raised.value.reason_key == "model_failed"
    assert raised.value.params["error"] == "quota exceeded"


@pytest.mark.parametrize(
    "answer",
    [
        "There is nothing to summarize.",
        "There's nothing meaningful to summarise here.",
        "It seems there is nothing to compress.",
        "The conversation history is empty.",
        "This conversation contains no messages to summarize.",
        "No conversation was provided.",
        "I don't see any conversation to summarize.",
        "Please provide the conversation you want summarized.",
        "I'm sorry, but I can't help with that.",
        "I’m sorry, but I can’t assist with that request.",
        "**I'm sorry**, I cannot summarize this.",
        "Sorry, I can't do that.",
        "I cannot summarize this conversation.",
        "I am unable to create a summary.",
        "Unfortunately, I can't help with this.",
        "As an AI language model, I cannot do that.",
        "没有可总结的内容",
        "没有可供总结的内容。",
        "目前没有需要总结的内容。",
        "这段对话没有什么可总结的。",
        "对话中没有可以压缩的内容",
        "暂无可总结的内容。",
        "无需总结。",
        "没有任何对话内容。",
        "对话记录为空。",
        "您没有提供对话内容，请提供需要总结的对话。",
        "请提供需要总结的聊天记录。",
        "抱歉，我无法完成这个请求。",
        "很抱歉，我无法提供摘要。",
        "对不起，我不能总结这段内容",
        "我无法为您总结这段对话。",
        "你好，我无法给到相关内容。",
        "你好，这个问题我暂时无法回答，让我们换个话题再聊聊吧。",
        "作为一个人工智能语言模型，我还没学习如何回答这个问题。",
        "## 摘要\n抱歉，我无法总结这段对话。",
        "## Summary\nThere is nothing to summarize.",
        "## 事实\n无\n## 决定\n- 暂无\n",
        "None",
        "无",
    ],
)
def test_a_stock_refusal_never_becomes_a_summary(answer):
    assert reason(answer) == "answer_refused"


@pytest.mark.parametrize(
    "answer",
    [
        "LLM 响应错误: All chat models failed: timeout",
        "All chat models failed: APIConnectionError",
        "Error: 429 too many requests",
        "Error",
        "Error code: 400 - {'error': {'message': '" + "x" * 2000 + "'}}",
        "openai.APIConnectionError: Connection error.",
        "httpx.ReadTimeout: timed out",
        "Internal server error",
        "Internal Server Error.",
        "API error 500",
        "An unexpected error occurred, please retry.",
        "Request timed out.",
        "Connection refused",
        "Rate limit exceeded",
        "HTTP 502 Bad Gateway",
        "503 Service Unavailable",
        "429: Too many requests",
        "This model's maximum context length is 8192 tokens.",
        "The server is currently overloaded.",
        '{"error": {"message": "' + "x" * 2000 + '"}}',
        "<html><head><title>502</title></head>" + "x" * 2000,
        "Traceback (most recent call last):\n" + "x" * 2000,
        "请求失败，请稍后重试",
        "Dify 请求失败：timeout",
        "错误：余额不足",
        "发生未知错误",
        "服务器繁忙，请稍后再试",
        "账户余额不足，请充值",
    ],
)
def test_an_error_text_never_becomes_a_summary(answer):
    assert reason(answer) == "answer_refused"


@pytest.mark.parametrize(
    "answer",
    [
        "## 决定\n- 抱歉没有预订成功，改到周五",
        "## 事实\n- 服务器报错 Error: 502，已重启解决",
        "## 未决\n- 没有人负责总结会议",
        "## Facts\n- Tom said: I'm sorry, I cannot come on Friday",
        "## Decisions\n- None of the three offers was taken; the fourth was",
        "## 偏好\n无\n## 事实\n- 小明住在广州",
        "小明住在广州，不能吃辣，周五没有空。",
        "无锡的客户周五来访",
        "供应商无法提供发票，改用收据。",
        "支付请求失败三次后改用现金。",
        "Error budget for May is 3 %; Ann owns it.",
        "Requests for leave go to Ann.",
        "No meat, no fish: Ann is vegan.",
        "没有糖的咖啡是小明的偏好。",
        "我们决定周五出发。",
        "There is no meeting on Friday; Ann moved it to Monday.",
        "抱歉，我无法" + "。后来小明说他住在广州" * 60,
    ],
)
def test_a_summary_that_mentions_errors_or_apologies_is_kept(answer):
    assert clean_answer(answer) == answer


@pytest.mark.parametrize(
    "answer",
    [
        "<think>" * 20_000,
        "</think>" * 20_000 + "<",
        "```" * 50_000,
        "=" * 200_000,
        "- " * 100_000 + "无",
        " " * 200_000 + "x",
        "\n" * 200_000 + "x",
        "<answer>" * 50_000,
        " \t#*_" * 50_000 + "=",
        "<|begin_of_thought|>" * 20_000,
        "对话中" * 100,
        "there is " * 44,
    ],
)
def test_a_hostile_answer_is_judged_in_time_that_grows_with_its_length(answer):
    def judge(length):
        part = answer[-length:]
        for text in (part, part + SUMMARY, SUMMARY + part):
            with contextlib.suppress(CompressionRefused):
                clean_answer(text)

    assert growth(judge, len(answer)) < IN_LINE


def test_an_excerpt_is_one_short_line():
    assert excerpt("a\n\n b\ud800") == "a b\ufffd"
    assert len(excerpt("x" * 1000, 80)) == 80
