"""Whatever way a request ends, the stored conversation stays whole.

The reference for what a turn leaves behind is the host without the plugin and
without limits: a host that cuts by itself may lose steps of the running turn,
but never anything before it.
"""

import hashlib
import re

import pytest

from dev.scripted_model import RecordedRequest

from .conftest import HostPool
from .histories import brief, comparable, mixed_history
from .paths import ALL_PATHS, Chat, Path, walk
from .profiles import BARE, PROFILES, VERSIONS, Profile

# Here the two versions save differently, so these are always run on both.
DIFFERENT = {"error", "tool_answers"}
SAMPLE = 6
HOST_SUMMARY = (
    "Our previous history conversation summary",
    "Acknowledged the summary of our previous",
)

_references: dict[tuple, list[dict]] = {}


def _cases() -> list:
    cases = []
    for version in VERSIONS:
        for profile in PROFILES.values():
            for path in ALL_PATHS:
                marks = [pytest.mark.xdist_group(f"{version}-{profile.name}")]
                if not _always(profile, path):
                    marks.append(pytest.mark.full)
                name = f"{version}-{profile.name}-{path.name.replace(' ', '-')}"
                cases.append(pytest.param(version, profile, path, marks=marks, id=name))
    return cases


def _always(profile: Profile, path: Path) -> bool:
    if profile.name == "none" or path.exit in DIFFERENT:
        return True
    digest = hashlib.sha256(f"{profile.name} {path.name}".encode()).digest()
    return digest[0] % SAMPLE == 0


def _reference(hosts: HostPool, version: str, path: Path, tool: str) -> list[dict]:
    """What the path adds to a history on the host alone."""
    key = (version, path, tool)
    if key not in _references:
        chat = Chat(hosts.get(version, BARE), path.channel)
        seed = mixed_history(3)
        chat.seed(seed)
        walk(chat, path, tool, with_plugin=False)
        assert comparable(chat.stored[: len(seed)]) == comparable(seed)
        _references[key] = comparable(chat.stored[len(seed) :])
        assert _references[key] or path.exit in DIFFERENT
    return _references[key]


def _is_in_order_within(part: list[dict], whole: list[dict]) -> bool:
    rest = iter(whole)
    return all(any(item == other for other in rest) for item in part)


def _without_call_ids(messages: list[dict]) -> list[dict]:
    """Calls numbered by their own text: a host that cut a step has fewer of them."""
    return [
        {k: re.sub(r"call-\d+", "call", v) if isinstance(v, str) else v for k, v in m.items()}
        | (
            {"tool_calls": re.sub(r"call-\d+", "call", str(m["tool_calls"]))}
            if m.get("tool_calls")
            else {}
        )
        for m in messages
    ]


def _users(messages: list[dict]) -> list[dict]:
    return [m for m in messages if m["role"] == "user"]


def _steps(messages: list[dict]) -> list[dict]:
    return [m for m in messages if m["role"] == "tool" or m.get("tool_calls")]


def _check_new_turn(new: list[dict], wanted: list[dict], host_cuts: bool) -> None:
    if not host_cuts:
        assert new == wanted
        return
    new, wanted = _without_call_ids(new), _without_call_ids(wanted)
    # What the host writes about the steps that it cut is its own.
    new = [m for m in new if not str(m.get("content")).startswith(HOST_SUMMARY)]
    assert _users(new) == _users(wanted)
    # A model that no longer sees the question answers something else.
    assert [m["role"] for m in new[-1:]] == [m["role"] for m in wanted[-1:]]
    assert _is_in_order_within(_steps(new), _steps(wanted))


@pytest.mark.parametrize(("version", "profile", "path"), _cases())
def test_a_request_leaves_the_history_whole(
    hosts: HostPool, version: str, profile: Profile, path: Path, record_property
) -> None:
    record_property("exit_path", (path.name, f"{version} {profile.name}"))
    wanted = _reference(hosts, version, path, profile.tool)
    chat = Chat(hosts.get(version, profile), path.channel)
    seed = mixed_history(profile.turns, profile.turn_size)
    chat.seed(seed)
    walk(chat, path, profile.tool, with_plugin=True)
    stored = chat.stored
    assert stored[: len(seed)] == seed, brief(stored)
    _check_new_turn(comparable(stored[len(seed) :]), wanted, profile.host_cuts)
    request = _next_request(chat, stored)
    assert len(request.messages) < len(stored)


def _next_request(chat: Chat, before: list[dict]) -> RecordedRequest:
    """The next request; it must be valid and leave the history whole again."""
    already = len(chat.host.model.requests("the next question", "chat"))
    chat.say(f"the next question of {chat.number}")
    stored = chat.stored
    assert stored[: len(before)] == before
    added = [m["role"] for m in stored[len(before) :] if m["role"] != "_checkpoint"]
    assert added == ["user", "assistant"]
    request = chat.host.model.requests("the next question", "chat")[already]
    assert request.violations == []
    return request
