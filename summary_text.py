"""What a summarising model is asked.

Pure. A prompt always holds the messages, the summary so far and the focus, also
when a template of the user's own forgets them: what is not sent must not count as
summarised, and an old summary that is not sent would be overwritten.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from jinja2 import StrictUndefined
from jinja2.sandbox import SandboxedEnvironment

from .errors import CompressionRefused
from .message_text import TranscriptMessage, clean_text, shorten
from .summary_answer import unwrapped, without_leading_reasoning

_PROMPTS = Path(__file__).parent / "prompts"
_ENVIRONMENT = SandboxedEnvironment(
    undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=False
)
# A message could otherwise end the block it stands in.
_DELIMITER = re.compile(r"<(/?(?:messages|summary_so_far|assistant_role)\s*)>", re.IGNORECASE)
# A role is told by its beginning; all of it would cost as much as a chapter of chat.
_PERSONA_HEAD, _PERSONA_TAIL = 1200, 300


def default_template() -> str:
    """The text of the default compress prompt template."""
    return (_PROMPTS / "compress.j2").read_text(encoding="utf-8")


def system_prompt() -> str:
    """The system prompt of every compression call."""
    return (_PROMPTS / "system.j2").read_text(encoding="utf-8").strip()


def shorten_prompt(summary: str, target_tokens: int) -> str:
    """The prompt that has a summary shortened."""
    source = (_PROMPTS / "shorten.j2").read_text(encoding="utf-8")
    prompt = _ENVIRONMENT.from_string(source).render(
        summary=_material(summary), target_tokens=target_tokens
    )
    return clean_text(prompt)


def render_messages(messages: Sequence[TranscriptMessage]) -> str:
    """The messages as numbered blocks, without reasoning that stands in answers."""
    blocks = []
    for number, message in enumerate(messages, start=1):
        text = message.text
        if message.role == "assistant":
            text = without_leading_reasoning(text)
        blocks.append(f"[{number}] {message.role}: {_material(text)}")
    return "\n".join(blocks)


def render_prompt(
    template: str,
    *,
    messages: Sequence[TranscriptMessage],
    summary: str,
    focus: str,
    target_tokens: int,
    persona: str = "",
) -> str:
    """Renders a compress prompt.

    Args:
        template: A Jinja2 template; blank means the default one. Variables:
            ``messages``, ``summary``, ``focus``, ``persona``, ``target_tokens``.
        messages: The messages to summarise.
        summary: The summary so far; its wrapper is taken off.
        focus: What the user asked to pay attention to.
        target_tokens: Wanted length of the summary.
        persona: The role that the assistant plays in the chat.

    Raises:
        CompressionRefused: The template is broken.
    """
    material = {
        "focus": focus.strip(),
        "summary": _material(unwrapped(summary)),
        "messages": render_messages(messages),
    }
    source = template if template.strip() else default_template()
    extra = {
        "persona": _material(shorten(persona.strip(), _PERSONA_HEAD, _PERSONA_TAIL)),
        "target_tokens": target_tokens,
    }
    try:
        prompt = _ENVIRONMENT.from_string(source).render(**material, **extra)
    except Exception as error:
        # A user's template can raise anything.
        raise CompressionRefused("bad_template", error=_reason(error)) from error
    return clean_text(_completed(prompt, material))


def _material(text: str) -> str:
    return _DELIMITER.sub(r"‹\1›", text)


def _reason(error: Exception) -> str:
    line = f", line {error.lineno}" if getattr(error, "lineno", None) else ""
    return clean_text(f"{str(error)[:200] or type(error).__name__}{line}")


def _completed(prompt: str, material: dict[str, str]) -> str:
    missing = [
        f"<{tag}>\n{material[name]}\n</{tag}>"
        for name, tag in (
            ("focus", "focus"),
            ("summary", "summary_so_far"),
            ("messages", "messages"),
        )
        if material[name] and material[name] not in prompt
    ]
    return "\n\n".join([prompt.rstrip(), *missing])
