"""Prompts hold what they must; of an answer only the summary is kept."""

import pytest
from astrbot_plugin_context_manager.errors import CompressionRefused
from astrbot_plugin_context_manager.message_text import TranscriptMessage, transcript
from astrbot_plugin_context_manager.summary_text import clean_answer, render_prompt, unwrapped


def prompt(**more):
    values = {
        "messages": [TranscriptMessage(0, "user", "hello")],
        "summary": "",
        "focus": "",
        "target_tokens": 1500,
    }
    return render_prompt(more.pop("template", ""), **values | more)


@pytest.mark.parametrize(
    ("answer", "kept"),
    [
        ("<think>hm</think>\n## facts", "## facts"),
        ("<Thinking>a</Thinking>b<think>c</think>", "b"),
        ("reasoning without a start</think>## facts", "## facts"),
        ("## facts\n<think>never closed", "## facts"),
        ("```markdown\n## facts\n- a\n```", "## facts\n- a"),
        ("```\n## facts\n```  ", "## facts"),
        ("===== AI Summary =====\n## facts", "## facts"),
        ("<summary>\n## facts\n</summary>", "## facts"),
        ("## facts\n```py\ncode\n```\nmore", "## facts\n```py\ncode\n```\nmore"),
        ("a\ud800", "a\ufffd"),
        ("## 决定\n- 抱歉没有预订成功", "## 决定\n- 抱歉没有预订成功"),
    ],
)
def test_wrappers_come_off_and_the_rest_stays(answer, kept):
    assert clean_answer(answer) == kept


@pytest.mark.parametrize(
    "answer",
    ["", " \n", "<think>x</think>", "<think>x", "```\n```"],
)
def test_nothing_left_is_a_failure(answer):
    with pytest.raises(CompressionRefused):
        clean_answer(answer)


@pytest.mark.parametrize(
    "answer",
    [
        "There is nothing to summarize.",
        "I'm sorry, but I can't help with that.",
        "I cannot summarize this conversation.",
        "没有可总结的内容",
        "目前没有需要总结的内容。",
        "很抱歉，我无法提供摘要。",
        "LLM 响应错误: All chat models failed: timeout",
        "Error: 429 too many requests",
    ],
)
def test_a_refusal_or_an_error_text_never_becomes_a_summary(answer):
    with pytest.raises(CompressionRefused):
        clean_answer(answer)


def test_an_answer_of_role_err_is_a_failure_with_its_text():
    with pytest.raises(CompressionRefused) as raised:
        clean_answer("quota exceeded", role="err")
    assert raised.value.params["error"] == "quota exceeded"


def test_an_old_summary_enters_without_its_wrapper_and_does_not_grow_over_five_passes():
    summary = "## facts"
    for _ in range(5):
        text = prompt(summary=f"===== AI Summary =====\n{summary}")
        summary = clean_answer(f"<summary>\n{unwrapped(summary)}\n</summary>")
        assert text.count("facts") == prompt(summary="## facts").count("facts")
    assert summary == "## facts"


def test_the_prompt_asks_for_what_matters_and_forbids_the_rest():
    text = prompt()
    for word in ("literally", "names, numbers, dates", "Invent nothing", "newer is right", "1500"):
        assert word in text


def test_a_template_that_forgets_the_messages_still_gets_them():
    assert "hello" in prompt(template="just do it")


@pytest.mark.parametrize(
    "template", ["{{ unknown }}", "{% if %}", "{{ messages.__class__.__mro__ }}"]
)
def test_a_broken_or_prying_template_is_refused(template):
    with pytest.raises(CompressionRefused):
        prompt(template=template)


def test_a_transcript_has_no_checkpoints_reminders_reasoning_or_media():
    history = [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "看图"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 9999}},
                {"type": "text", "text": "<system_reminder>Current time: x</system_reminder>"},
            ],
        },
        {"role": "assistant", "content": [{"type": "think", "think": "secret"}]},
        {"role": "_checkpoint", "content": {"id": "c"}},
        {"role": "assistant", "content": "好看"},
    ]
    assert [(m.index, m.role, m.text) for m in transcript(history)] == [
        (0, "user", "看图\n[图片]"),
        (3, "assistant", "好看"),
    ]


def test_a_tool_result_of_300_kb_enters_as_head_and_tail():
    [message] = transcript(
        [{"role": "tool", "tool_call_id": "1", "content": "x" * 300_000 + "END"}]
    )
    assert len(message.text) < 2500 and message.text.endswith("END")
