"""What a provider reports or refuses changes later requests, and nothing that is stored."""

import json
from collections.abc import Iterator

import pytest

from dev.host_process import HostProcess
from dev.script import Reply, text_of

from .conftest import HostPool
from .histories import mixed_history, text_turn
from .profiles import VERSIONS, Profile
from .sessions import Session

LIMITED = Profile("limited", budget=8000)
SMALL_FALLBACK = 6000
SIZE = 900


class Provider:
    """Counts a third of a token a character, and refuses what is longer than its limit."""

    def __init__(self, marker: str) -> None:
        self.marker = marker
        self.limit = 10**9
        self.refused = 0
        self.accepted: list[int] = []

    def __call__(self, body: dict) -> Reply | None:
        if self.marker not in json.dumps(body["messages"], ensure_ascii=False):
            return None
        texts = [text_of(message) for message in body["messages"]]
        texts.append(json.dumps(body.get("tools") or [], ensure_ascii=False))
        tokens = sum(map(len, texts)) // 3
        if tokens > self.limit:
            self.refused += 1
            text = f"This model's maximum context length is {self.limit} tokens."
            return Reply(text, status=400)
        self.accepted.append(tokens)
        usage = {"prompt_tokens": tokens, "completion_tokens": 5, "total_tokens": tokens + 5}
        return Reply(f"answer {len(self.accepted)}", usage=usage)


@pytest.fixture(
    params=[pytest.param(v, marks=pytest.mark.xdist_group(f"{v}-limited")) for v in VERSIONS]
)
def limited(request: pytest.FixtureRequest, hosts: HostPool) -> HostProcess:
    """A host of its own for each version: what is learned here holds for its model."""
    return hosts.get(request.param, LIMITED)


@pytest.fixture
def provider(limited: HostProcess, number: int) -> Iterator[Provider]:
    """The model of one chat, which is told by a word in its messages."""
    made = Provider(f"marker{number}")
    remove = limited.model.add_script(made)
    yield made
    remove()


def talk_of(
    limited: HostProcess, provider: Provider, channel: str = "private"
) -> tuple[Session, list[dict]]:
    """A chat with more history than its budget holds, four requests later."""
    chat = Session(limited, channel)
    history = [m for n in range(1, 41) for m in text_turn(n, SIZE)]
    chat.seed(history)
    for turn in range(4):
        chat.say(f"{provider.marker} turn {turn}")
    return chat, history


def test_after_a_context_that_was_too_long_the_next_request_fits(
    limited: HostProcess, provider: Provider
) -> None:
    chat, history = talk_of(limited, provider)
    before = provider.accepted[-1]
    provider.limit = before * 8 // 10
    chat.say(f"{provider.marker} too long")
    assert provider.refused > 0
    assert provider.accepted[-1] <= provider.limit
    provider.refused = 0
    for turn in range(3):
        chat.say(f"{provider.marker} again {turn}")
    assert provider.refused == 0
    assert provider.accepted[-1] > provider.limit // 2
    assert chat.stored[: len(history)] == history
    assert len(chat.stored) == len(history) + 2 * 8
    warnings = limited.web.api("GET", "health")[1]["warnings"]
    assert any(w["code"] == "learned_limit" and "≈" in w["message"] for w in warnings)


@pytest.mark.full
@pytest.mark.parametrize("channel", ["private", "web_stream", "web_plain"])
def test_a_final_refusal_shortens_the_next_request(
    limited: HostProcess, provider: Provider, channel: str
) -> None:
    chat, history = talk_of(limited, provider, channel)
    before = provider.accepted[-1]
    provider.limit = 1500
    chat.say(f"{provider.marker} refused for good")
    provider.limit = before
    accepted = len(provider.accepted)
    chat.say(f"{provider.marker} again")
    assert len(provider.accepted) == accepted + 1
    assert provider.accepted[-1] < before
    assert chat.stored[: len(history)] == history


@pytest.mark.full
@pytest.mark.parametrize("version", VERSIONS)
def test_the_smallest_window_of_the_fallback_chain_counts(hosts: HostPool, version: str) -> None:
    config = LIMITED.config(version)
    models = [_provider(hosts, "scripted", 128_000), _provider(hosts, "second", SMALL_FALLBACK)]
    config.settings = {
        "provider": models,
        "provider_settings": {"fallback_chat_models": ["second"]},
        "agent_runner": {"config": {"model": {"fallback_provider_ids": ["second"]}}},
    }
    config.plugin_config = {"recent_context_token_budget": 100_000}
    host = hosts.start(config)
    try:
        chat = Session(host)
        chat.seed(mixed_history(60, SIZE))
        chat.ask("hello there")
        status, view = host.web.api("GET", "session/preview", session_id=chat.origin)
    finally:
        host.close()
    assert status == 200
    assert view["left_out"]["reason"] == "model_limit"
    assert 0 < view["first_turn"] < 60


def _provider(hosts: HostPool, name: str, window: int) -> dict:
    return {
        "id": name,
        "type": "openai_chat_completion",
        "provider": "openai",
        "provider_type": "chat_completion",
        "enable": True,
        "key": ["x"],
        "api_base": hosts.model.base_url,
        "model": name,
        "modalities": ["text", "image", "audio", "tool_use"],
        "max_context_tokens": window,
    }
