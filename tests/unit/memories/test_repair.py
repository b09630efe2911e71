"""What is stored while memories are still on the current message is put right."""

from types import SimpleNamespace

import pytest
from astrbot.core.agent.message import Message, TextPart
from astrbot_plugin_context_manager.host import Host
from astrbot_plugin_context_manager.repair import repaired_store
from astrbot_plugin_context_manager.request_state import RequestState
from astrbot_plugin_context_manager.temporary_part import TemporaryPart
from astrbot_plugin_context_manager.tokens import TokenCounter

from ..messages import build_request


@pytest.fixture
def host():
    return Host(SimpleNamespace(), TokenCounter())


def request_of(host, turns):
    """A request that was never restored, its answer, and what the host should store."""
    history = []
    for number in range(turns):
        history += [
            Message(role="user", content=f"question {number}"),
            Message(role="assistant", content=f"answer {number}"),
        ]
    current = Message(role="user", content="now")
    messages = [Message(role="system", content="s"), *history, current]
    answer = Message(role="assistant", content="reply")
    whole = host.saved_form([*history, current, answer])
    projection = build_request(
        messages,
        budget=100,
        make_message=host.make_message,
    )
    part = TextPart(text="memories").mark_as_temp()
    recalled = TemporaryPart.beside(current, part, host.text_part)
    recalled.attach()
    run = SimpleNamespace(messages=[*projection.messages, answer])
    state = RequestState(None, "s", "c", projection=projection, run_context=run, recalled=recalled)
    return state, whole


@pytest.mark.parametrize("turns", [1, 40])
def test_what_was_saved_from_a_request_with_memories_becomes_what_it_should_be(host, turns):
    state, whole = request_of(host, turns)
    assert state.projection.changed_history is (turns == 40)
    saved = host.saved_form(state.run_context.messages)
    assert saved != whole and state.open_cut
    later = {"role": "user", "content": "later"}
    assert repaired_store(host, state, [*saved, later]) == [*whole, later]
    assert repaired_store(host, state, whole) is None


def test_a_repair_that_knew_nothing_of_the_memories_is_completed(host):
    state, whole = request_of(host, 40)
    by_journal = host.saved_form(state.uncut())
    assert by_journal != whole
    assert repaired_store(host, state, by_journal) == whole


def test_a_history_that_somebody_changed_meanwhile_stays(host):
    state, _ = request_of(host, 40)
    for stored in (
        [],
        host.saved_form(state.projection.before),
        [{"role": "user", "content": "x"}],
    ):
        assert repaired_store(host, state, stored) is None
