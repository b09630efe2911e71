"""How the answers and errors of the host's models are read."""

from typing import Any

from .host_types import LLMAnswer
from .request_log import Usage

# No request has more; what is reported beyond it is no number of tokens.
MOST_TOKENS = 100_000_000


def reported_usage(response: Any) -> Usage | None:
    """What a provider reported with an answer; None if nothing or nothing usable."""
    usage = getattr(response, "usage", None)
    counts = [getattr(usage, name, None) for name in ("input_other", "input_cached", "output")]
    if not all(type(count) is int for count in counts):
        return None
    fresh, cached, output = counts
    prompt = fresh + cached
    # Some providers report zeros, or the output alone: no prompt is empty.
    if not 0 < prompt <= MOST_TOKENS or not all(0 <= n <= MOST_TOKENS for n in (cached, output)):
        return None
    # Some report more cached than there was, and then a negative rest.
    return Usage(prompt, min(cached, prompt), output)


def described_answer(answer: Any) -> LLMAnswer:
    """An answer to a call of the plugin's own."""
    usage = reported_usage(answer)
    completion = getattr(answer, "raw_completion", None)
    choices = getattr(completion, "choices", None) or [completion]
    return LLMAnswer(
        text=answer.completion_text or "",
        role=str(answer.role or ""),
        reasoning=getattr(answer, "reasoning_content", None) or "",
        input_tokens=usage.prompt_tokens if usage else None,
        output_tokens=usage.output_tokens if usage else None,
        finish=getattr(choices[0], "finish_reason", None)
        or getattr(choices[0], "stop_reason", None),
    )


def answering_model(response: Any) -> str:
    """Name of the model that an answer says it is from; empty if it does not."""
    name = getattr(getattr(response, "raw_completion", None), "model", None)
    return name if isinstance(name, str) else ""


def is_reply(message: Any) -> bool:
    """Whether a message of a run is the answer that ended it."""
    return message.role == "assistant" and not message.tool_calls


def error_text(response: Any) -> str:
    """The text of an error that stands for an answer; empty for an answer."""
    failed = getattr(response, "role", None) == "err"
    return str(response.completion_text or "") if failed else ""


def failure_text(event: Any) -> str:
    """The text that a request without an answer ends with; empty after an answer."""
    result = event.get_result()
    if result is None or result.is_llm_result():
        return ""
    return result.get_plain_text()


def fallback_ids(config: Any) -> list[str]:
    """Providers that answer when a session's own fails, from whichever place holds them."""
    runner = (config.get("agent_runner") or {}).get("config") or {}
    chain = (runner.get("model") or {}).get("fallback_provider_ids")
    if chain is None:
        chain = (config.get("provider_settings") or {}).get("fallback_chat_models")
    return [i for i in chain if isinstance(i, str) and i] if isinstance(chain, list) else []
