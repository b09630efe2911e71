"""What the plugin learns from the host about models and their answers."""

from collections.abc import Sequence
from dataclasses import dataclass

# The share of a model's window at which the host starts to cut by itself.
HOST_THRESHOLD = 0.82


@dataclass(frozen=True, slots=True)
class ChatProvider:
    """The chat model of a session.

    Attributes:
        provider_id: The host's id of the provider.
        model: Model name.
        max_context_tokens: The model's window, 0 if the host does not know it.
    """

    provider_id: str
    model: str
    max_context_tokens: int


@dataclass(frozen=True, slots=True)
class LLMAnswer:
    """What a model answered to a call of the plugin's own."""

    text: str
    role: str
    reasoning: str
    input_tokens: int | None
    output_tokens: int | None
    finish: str | None


def host_limit(providers: Sequence[ChatProvider]) -> int | None:
    """Host-estimated tokens up to which the host cuts for none of them, or None."""
    known = [p.max_context_tokens for p in providers if p.max_context_tokens]
    return int(min(known) * HOST_THRESHOLD) if known else None
