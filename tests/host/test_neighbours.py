"""Beside other plugins, other plugins' own requests, timed tasks and remote agents."""

import json

import pytest
from astrbot_plugin_context_manager.context_logic import FIXED_MARKER, SUMMARY_MARKER

from dev.dify import FakeDify
from dev.host_process import HostProcess

from .conftest import HostPool
from .histories import brief, comparable, mixed_history
from .profiles import VERSIONS, Profile
from .sessions import PLUGINS, Session, our_lines, system_text, wait_until

NEIGHBOUR = (PLUGINS / "astrbot_plugin_neighbour",)
WITH_NEIGHBOUR = Profile("neighbour", plugins=NEIGHBOUR)
NEIGHBOUR_ALONE = Profile("neighbour-alone", plugins=NEIGHBOUR, with_plugin=False)
GROUPS = [pytest.param(v, marks=pytest.mark.xdist_group(f"{v}-neighbour")) for v in VERSIONS]
on_both_hosts = pytest.mark.parametrize("version", GROUPS)
KEYWORDS = ("nb-add", "nb-temp", "nb-begin", "nb-stop-response", "nb-stop-done", "nb-raise")
HISTORY = mixed_history(20, 700)


def _after(hosts: HostPool, version: str, profile: Profile, channel: str, keyword: str) -> tuple:
    """A chat with the new turn, and the replies it got."""
    host = hosts.get(version, profile)
    row = {"fixed_memory": "a rule", "summary": "the past"} if profile.with_plugin else {}
    chat = Session(host, channel, **row)
    chat.seed(HISTORY)
    before = len(host.model.requests())
    chat.start(f"do it {keyword} #tool:lookup*1")
    # Not every keyword leads to a reply that could be waited for.
    wait_until(lambda: len(host.model.requests()) > before, "the request")
    chat.finish()
    return chat, chat.replies() if chat.target else []


@on_both_hosts
@pytest.mark.parametrize("channel", ["private", "web_stream"])
@pytest.mark.parametrize("keyword", KEYWORDS)
def test_a_neighbour_costs_neither_history_nor_reply(
    hosts: HostPool, version: str, channel: str, keyword: str
) -> None:
    alone, its_replies = _after(hosts, version, NEIGHBOUR_ALONE, channel, keyword)
    chat, replies = _after(hosts, version, WITH_NEIGHBOUR, channel, keyword)
    assert replies == its_replies
    if channel == "private" and "stop" not in keyword:
        assert replies[-1].startswith("Noted, answer")
    assert chat.stored[: len(HISTORY)] == HISTORY, brief(chat.stored)
    assert comparable(chat.stored) == comparable(alone.stored)


@on_both_hosts
def test_sections_stand_behind_a_neighbours_text(hosts: HostPool, version: str) -> None:
    host = hosts.get(version, WITH_NEIGHBOUR)
    chat = Session(host, fixed_memory="a rule", summary="the past")
    chat.seed(HISTORY)
    request = chat.ask(f"nb-add nb-temp from {chat.number}")
    text = system_text(request)
    assert text.split("\n").count(FIXED_MARKER) == 1
    parts = ("neighbour's rule", FIXED_MARKER, "a rule", SUMMARY_MARKER, "the past")
    places = [text.index(part) for part in parts]
    assert places == sorted(places)
    current = json.dumps(request.messages[-1])
    assert "neighbour's words" in current and "neighbour's passing note" in current
    assert "passing note" not in chat.raw


@on_both_hosts
def test_a_request_without_a_conversation_gets_sections_and_stores_nothing(
    hosts: HostPool, version: str
) -> None:
    host = hosts.get(version, WITH_NEIGHBOUR)
    chat = Session(host, fixed_memory="a rule", summary="the past")
    chat.seed(HISTORY)
    before = len(host.model.requests())
    chat.say(f"/own {chat.number}")
    found = [r for r in host.model.requests()[before:] if "own request" in r.dump()]
    assert [r.violations for r in found] == [[]]
    text = system_text(found[0])
    assert "own system prompt" in text and "a rule" in text and "the past" in text
    assert "own question 1" in found[0].dump()
    assert chat.stored == HISTORY


@on_both_hosts
def test_a_timed_task_is_built_and_its_history_stays_whole(hosts: HostPool, version: str) -> None:
    host = hosts.get(version, WITH_NEIGHBOUR)
    chat = Session(host, fixed_memory="a rule", recent_context_token_budget=4000)
    chat.seed(HISTORY)
    before = len(host.model.requests())
    note = f"timed note of {chat.number}"
    job = {
        "name": "timed",
        "session": chat.origin,
        "note": note,
        "run_once": True,
        "run_at": "2099-01-01T00:00:00+00:00",
    }
    job_id = host.web.post("/api/cron/jobs", job)["job_id"]
    host.web.post(f"/api/cron/jobs/{job_id}/run", {})
    wait_until(lambda: _timed(host, before, note), "the timed task's request")
    request = _timed(host, before, note)[0]
    assert request.violations == []
    assert "a rule" in system_text(request)
    assert len(request.messages) < 30
    wait_until(lambda: _grown(chat), "the timed task's record")
    assert chat.stored[: len(HISTORY)] == HISTORY, brief(chat.stored)
    chat.ask(f"after the task in {chat.number}")
    assert chat.stored[: len(HISTORY)] == HISTORY


def _timed(host: HostProcess, before: int, note: str) -> list:
    return [r for r in host.model.requests()[before:] if r.kind == "chat" and note in r.dump()]


def _grown(chat: Session) -> bool:
    return len(chat.stored) > len(HISTORY)


@on_both_hosts
def test_a_remote_agent_gets_the_sections_in_its_prompt(hosts: HostPool, version: str) -> None:
    with FakeDify() as dify:
        profile = Profile("dify", extra=dify.host_settings())
        host = hosts.start(profile.config(version))
        try:
            chat = Session(host, fixed_memory="a rule", summary="the past")
            reply = chat.command(f"hello from {chat.number}")
            assert reply == ["Dify answers."]
            prompt = dify.requests[-1]["inputs"]["system_prompt"]
            assert prompt.count(FIXED_MARKER) == 1 and "a rule" in prompt and "the past" in prompt
            assert our_lines(host.log(), "ERRO") == []
            assert chat.command("and again") == ["Dify answers."]
            assert dify.requests[-1]["inputs"]["system_prompt"] == prompt
        finally:
            host.close()
