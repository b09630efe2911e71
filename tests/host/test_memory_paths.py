"""A recall leaves no trace in what is stored, however a request ends."""

import pytest

from .conftest import HostPool
from .histories import comparable, mixed_history
from .paths import ALL_PATHS, Path, walk
from .profiles import BARE_TEXT, VERSIONS
from .sessions import Session

MEMORY = "question forty two belongs to Ada"
# One path that the host saves with the memory still on the message, and one repaired late.
SAMPLE = {"web_plain error", "private reload_model"}
PATHS = [
    pytest.param(path, marks=[] if path.name in SAMPLE else pytest.mark.full, id=path.name)
    for path in ALL_PATHS
    if not path.exit.startswith("off")
]


def chat_of(hosts: HostPool, version: str, path: Path, memory: str, turns: int) -> Session:
    """A chat with a history and one memory."""
    host = hosts.get(version, BARE_TEXT)
    # Prompt and tools of a WebUI chat take 3,000; a memory never takes room from the window.
    chat = Session(host, path.channel, memory_enabled=1, recent_context_token_budget=8000)
    chat.seed(mixed_history(turns, 2000))
    body = {"session_id": chat.origin, "text": memory}
    assert host.web.api("POST", "memories", body)[0] == 200
    return chat


@pytest.mark.parametrize(
    "version",
    [pytest.param(v, marks=pytest.mark.xdist_group(f"{v}-bare_text")) for v in VERSIONS],
)
@pytest.mark.parametrize("path", PATHS)
def test_what_is_stored_is_the_same_with_and_without_a_recall(
    hosts: HostPool, version: str, path: Path
) -> None:
    # A short history is sent whole, a long one is cut: both are repaired.
    for turns in (2, 20):
        chats = [chat_of(hosts, version, path, memory, turns) for memory in (MEMORY, "plays chess")]
        before = len(hosts.model.requests())
        for chat in chats:
            walk(chat, path, "lookup", with_plugin=True)
        sent = [r for r in hosts.model.requests()[before:] if MEMORY in r.dump()]
        assert sent
        stored = [comparable(chat.stored) for chat in chats]
        assert stored[0] == stored[1]
        assert MEMORY not in chats[0].raw
