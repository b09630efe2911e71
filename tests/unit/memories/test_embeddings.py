"""Embeddings come in time or not at all."""

import asyncio
import logging

import numpy as np
import pytest
from astrbot_plugin_context_manager import embeddings
from astrbot_plugin_context_manager.embeddings import FIRST_PAUSE, Embedder

from .parts import Provider

BAD_ANSWERS = [
    [],
    [[]],
    [[0.0, 0.0]],
    [[float("nan"), 1.0]],
    [[float("inf"), 1.0]],
    [["a", "b"]],
    [[1.0], [1.0, 2.0]],
    None,
    "vectors",
    [[1.0, 2.0], [3.0, 4.0]],
]


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


async def test_vectors_come_at_length_one_with_their_model(clock):
    embedder = Embedder(Provider(mode=lambda texts: [[3.0, 4.0]]), clock)
    found = await embedder.embed(["a"], 1)
    assert (found.model, found.dimension) == ("m", 2)
    assert np.allclose(found.rows, [[0.6, 0.8]])


async def test_without_a_provider_nothing_is_asked(clock):
    provider = Provider(model=None)
    embedder = Embedder(provider, clock)
    assert not embedder.available
    assert await embedder.embed(["a"], 1) is None and provider.asked == []


@pytest.mark.parametrize("answer", BAD_ANSWERS, ids=repr)
async def test_an_answer_without_usable_vectors_is_a_failure(answer, clock, caplog):
    embedder = Embedder(Provider(mode=lambda texts: answer), clock)
    assert await embedder.embed(["a"], 1) is None
    assert len(caplog.records) == 1


@pytest.mark.parametrize("mode", ["hang", "error"])
async def test_a_failed_provider_is_asked_once_and_logged_once(mode, clock, caplog):
    provider = Provider(mode=mode)
    embedder = Embedder(provider, clock)
    for _ in range(5):
        assert await embedder.embed(["a"], 0.01) is None
    assert len(provider.asked) == 1
    assert len(caplog.records) == 1
    await embedder.close()


async def test_a_provider_that_ignores_being_cancelled_holds_nobody(clock, monkeypatch):
    monkeypatch.setattr(embeddings, "CLOSE_SECONDS", 0.01)
    release = asyncio.Event()

    class Stubborn(Provider):
        async def embed(self, texts):
            while not release.is_set():
                try:
                    await release.wait()
                except asyncio.CancelledError:
                    continue
            return [[1.0]]

    embedder = Embedder(Stubborn(), clock)
    assert await embedder.embed(["a"], 0.01) is None
    async with asyncio.timeout(5):
        await embedder.close()
    release.set()
    await embedder.settle()


async def test_a_provider_that_works_again_is_used_again(clock, caplog):
    caplog.set_level(logging.INFO)
    provider = Provider(mode="error")
    embedder = Embedder(provider, clock)
    await embedder.embed(["a"], 1)
    provider.mode = "ok"
    clock.now = FIRST_PAUSE - 1
    assert await embedder.embed(["b"], 1) is None and len(provider.asked) == 1
    clock.now = FIRST_PAUSE
    # The trial runs beside the request, which does not wait for it.
    assert await embedder.embed(["c"], 1) is None
    await embedder.settle()
    assert "usable again" in caplog.records[-1].message
    assert await embedder.embed(["d"], 1) is not None


async def test_the_pause_grows_while_the_provider_stays_broken(clock):
    provider = Provider(mode="error")
    embedder = Embedder(provider, clock)
    await embedder.embed(["a"], 1)
    clock.now = FIRST_PAUSE
    await embedder.embed(["b"], 1)
    await embedder.settle()
    clock.now = FIRST_PAUSE * 2.5
    await embedder.embed(["c"], 1)
    await embedder.settle()
    assert len(provider.asked) == 2
