"""What a summarising model is asked, and what of its answer may be kept.

Pure. An answer is either a summary or a ``CompressionRefused`` with the reason;
it is never shortened or repaired beyond taking off wrappers.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from jinja2 import StrictUndefined, TemplateError
from jinja2.sandbox import SandboxedEnvironment

from .context_logic import SUMMARY_FRAME
from .errors import CompressionRefused
from .message_text import TranscriptMessage, clean_text, shorten

_PROMPTS = Path(__file__).parent / "prompts"
_ENVIRONMENT = SandboxedEnvironment(
    undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=False
)

# A message longer than this enters the prompt as head and tail.
_MESSAGE_HEAD, _MESSAGE_TAIL = 6000, 2000

_REASONING_TAGS = "think|thinking|thought|reasoning"
_CLOSED_REASONING = re.compile(
    rf"<({_REASONING_TAGS})\b[^>]*>.*?</\1\s*>", re.DOTALL | re.IGNORECASE
)
_UNTIL_CLOSING_TAG = re.compile(rf"\A.*</(?:{_REASONING_TAGS})\s*>", re.DOTALL | re.IGNORECASE)
_UNCLOSED_REASONING = re.compile(rf"<(?:{_REASONING_TAGS})\b[^>]*>.*\Z", re.DOTALL | re.IGNORECASE)
_FENCE = re.compile(r"\A(`{3,}|~{3,})[^\n`]*\n(.*?)\n?\1\s*\Z", re.DOTALL)
_WRAPPER = re.compile(
    rf"^\s*(?:[=-]+\s*(?:AI Summary|Fixed Memory)\s*[=-]+|</?summary(?:_so_far)?>"
    rf"|{re.escape(SUMMARY_FRAME)})\s*$",
    re.MULTILINE | re.IGNORECASE,
)
# A refusal opens the answer and is short; a summary may well quote one.
_REFUSAL = re.compile(
    r"\A\W*(?:(?:there (?:is|are|was)|i (?:see|find)) (?:nothing|no)\b.{0,60}summar"
    r"|(?:i(?:'m| am) )?(?:sorry|unable)\b|i (?:cannot|can't|can not|won't)\b|nothing to summar"
    r"|(?:目前|当前|这里)?\s*(?:没有|无|并无)(?:任何)?(?:可以?|需要|可供|能够?)?(?:被)?"
    r"(?:总结|摘要|概括|压缩|内容)"
    r"|(?:非常|很)?(?:抱歉|对不起)|我?(?:无法|不能)(?:提供|完成|生成|总结|协助|帮助))",
    re.IGNORECASE | re.DOTALL,
)
_ERROR = re.compile(
    r"\A\W*(?:error\b|request failed|llm 响应错误|all chat models failed|请求失败|"
    r"all available chat models|(?:http )?(?:4\d\d|5\d\d)\b.{0,40}"
    r"(?:error|unauthori|limit|unavail))",
    re.IGNORECASE | re.DOTALL,
)
_REFUSAL_LENGTH = 240


def default_template() -> str:
    """The text of the default compress prompt template."""
    return (_PROMPTS / "compress.j2").read_text(encoding="utf-8")


def system_prompt() -> str:
    """The system prompt of every compression call."""
    return (_PROMPTS / "system.j2").read_text(encoding="utf-8").strip()


def render_messages(messages: Sequence[TranscriptMessage]) -> str:
    """The messages as numbered blocks, very long ones as head and tail."""
    return "\n".join(
        f"[{number}] {message.role}: {shorten(message.text, _MESSAGE_HEAD, _MESSAGE_TAIL)}"
        for number, message in enumerate(messages, start=1)
    )


def render_prompt(
    template: str,
    *,
    messages: Sequence[TranscriptMessage],
    summary: str,
    focus: str,
    target_tokens: int,
) -> str:
    """Renders a compress prompt.

    Args:
        template: A Jinja2 template; empty means the default one. Variables:
            ``messages``, ``summary``, ``focus``, ``target_tokens``.
        messages: The messages to summarise.
        summary: The summary so far, without its wrapper.
        focus: What the user asked to pay attention to.
        target_tokens: Wanted length of the summary.

    Raises:
        CompressionRefused: The template is broken.
    """
    rendered_messages = render_messages(messages)
    try:
        prompt = _ENVIRONMENT.from_string(template or default_template()).render(
            messages=rendered_messages,
            summary=unwrapped(summary),
            focus=focus.strip(),
            target_tokens=target_tokens,
        )
    except (TemplateError, ArithmeticError, TypeError, ValueError) as error:
        raise CompressionRefused("bad_template", error=error) from error
    if template and rendered_messages not in prompt:
        # A template that forgets the messages would summarise nothing.
        prompt = f"{prompt}\n\n{rendered_messages}"
    return clean_text(prompt)


def unwrapped(text: str) -> str:
    """A summary without the lines that the plugin or a model puts around it."""
    return _WRAPPER.sub("", text).strip()


def clean_answer(text: str, *, role: str = "assistant", finish: str | None = None) -> str:
    """The summary in a model's answer.

    Args:
        text: The answer's text.
        role: The answer's role as the host reports it; ``err`` is a failure.
        finish: The provider's finish reason, if known.

    Raises:
        CompressionRefused: There is no summary in it.
    """
    text = clean_text(text or "").strip()
    if role == "err":
        raise CompressionRefused("model_failed", error=text[:200] or "?")
    cleaned = _without_reasoning(text)
    if fenced := _FENCE.match(cleaned):
        cleaned = fenced[2].strip()
    cleaned = unwrapped(cleaned)
    if not cleaned:
        raise CompressionRefused("answer_reasoning_only" if text else "answer_empty")
    if finish == "length":
        raise CompressionRefused("answer_cut_off")
    if len(cleaned) <= _REFUSAL_LENGTH and (_REFUSAL.match(cleaned) or _ERROR.match(cleaned)):
        raise CompressionRefused("answer_refused", excerpt=cleaned[:80])
    return cleaned


def _without_reasoning(text: str) -> str:
    text = _CLOSED_REASONING.sub("", text)
    text = _UNTIL_CLOSING_TAG.sub("", text)
    return _UNCLOSED_REASONING.sub("", text).strip()
