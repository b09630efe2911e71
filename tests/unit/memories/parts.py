"""Memories, and an embedding provider that a test controls."""

import asyncio

from astrbot_plugin_context_manager.memory_store import Memory

from dev.scripted_embeddings import embedded


def memory(number: int, text: str, **more) -> Memory:
    values = {
        "tags": (),
        "about": "",
        "source": "model",
        "flagged": False,
        "reviewed": False,
        "created_at": 0,
        "recalled_at": None,
    }
    return Memory(number, "s", text, **values | more)


class Provider:
    """What the plugin asks the host for embeddings.

    Attributes:
        model: Name of the model; None if there is no provider.
        size: Length of the vectors.
        mode: ``ok``, ``error``, ``hang``, or a function from texts to an answer.
        asked: The texts of every call.
    """

    def __init__(self, model="m", size=64, mode="ok"):
        self.model, self.size, self.mode = model, size, mode
        self.asked = []

    def embedding_model(self):
        return self.model

    async def embed(self, texts):
        self.asked.append(texts)
        if self.mode == "hang":
            await asyncio.Event().wait()
        if self.mode == "error":
            raise RuntimeError("provider is down")
        if callable(self.mode):
            return self.mode(texts)
        return [embedded(text, self.size) for text in texts]
