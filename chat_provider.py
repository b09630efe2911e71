"""What the plugin knows of a chat model of the host."""

from dataclasses import dataclass


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
