"""What the host cut once more is known to the journal before anything is waited for."""

from types import SimpleNamespace

import pytest
from astrbot.core.agent.message import Message
from astrbot_plugin_context_manager.database import Database
from astrbot_plugin_context_manager.fingerprint import fingerprint
from astrbot_plugin_context_manager.host import Host
from astrbot_plugin_context_manager.journal import Journal
from astrbot_plugin_context_manager.recovery import note_what_was_saved, repaired_from_journal
from astrbot_plugin_context_manager.request_state import RequestState
from astrbot_plugin_context_manager.tokens import TokenCounter

from .messages import build_request


@pytest.fixture
async def journal(tmp_path):
    database = await Database.open(tmp_path / "context_manager.db")
    yield Journal(database, lambda: 1_000_000)
    await database.close()


@pytest.fixture
def host():
    return Host(SimpleNamespace(), TokenCounter())


def said(role, text):
    return Message(role=role, content=text)


SUMMARY = [said("user", "summary of the host"), said("assistant", "seen")]
ANSWER = said("assistant", "the answer")


async def cut_request(host, journal, first="question 0"):
    """A request that is cut and noted."""
    history = [said("user", first), said("assistant", "answer 0")]
    for number in range(1, 40):
        history += [said("user", f"question {number}"), said("assistant", f"answer {number}")]
    messages = [said("system", "s"), *history, said("user", "now")]
    projection = build_request(messages, budget=100, make_message=host.make_message)
    assert len(projection.messages) >= 6
    run = SimpleNamespace(messages=list(projection.messages))
    state = RequestState(None, "s", "c", projection=projection, run_context=run)
    state.journal_id = await journal.open(
        "s",
        "c",
        fingerprint(history),
        fingerprint(projection.messages[1:]),
        lambda: host.saved_form(projection.before),
    )
    return state


async def repaired(journal, stored):
    """What the next start makes of a stored conversation."""
    again = Journal(journal._database, lambda: 1_000_100)
    await again.load()
    return await repaired_from_journal(again, again.left_behind["c"], stored)


def cut_by_turns(sent):
    return [sent[0], *sent[-3:], ANSWER]


def compressed(sent):
    return [sent[0], *SUMMARY, *sent[-3:], ANSWER]


def without_the_question(sent):
    return [sent[0], *SUMMARY, ANSWER]


@pytest.mark.parametrize("shorten", [cut_by_turns, compressed, without_the_question])
async def test_a_list_that_the_host_cut_itself_is_repaired_from_the_journal(host, journal, shorten):
    state = await cut_request(host, journal)
    state.run_context.messages[:] = shorten(state.projection.messages)
    later = {"role": "user", "content": "later"}
    saved = [*host.saved_form(state.run_context.messages), later]
    assert await repaired(journal, saved) is None
    await note_what_was_saved(host, journal, state)
    whole = [*host.saved_form(state.whole()), later]
    assert await repaired(journal, saved) == whole
    assert await repaired(journal, whole) is None


@pytest.mark.parametrize("shorten", [cut_by_turns, compressed, without_the_question])
async def test_what_somebody_changed_in_it_stays(host, journal, shorten):
    state = await cut_request(host, journal)
    state.run_context.messages[:] = shorten(state.projection.messages)
    await note_what_was_saved(host, journal, state)
    saved = host.saved_form(state.run_context.messages)
    edited = [{**saved[0], "content": "edited"}, *saved[1:]]
    loaded = host.saved_form(state.projection.before)
    for stored in ([], saved[1:], edited, loaded):
        assert await repaired(journal, stored) is None


async def test_a_summary_that_the_history_began_with_already_is_not_taken_for_the_cut(
    host, journal
):
    state = await cut_request(host, journal, first=SUMMARY[0].content)
    state.run_context.messages[:] = without_the_question(state.projection.messages)
    await note_what_was_saved(host, journal, state)
    assert await repaired(journal, host.saved_form(state.projection.before)) is None


async def test_a_request_that_ended_as_it_was_noted_is_not_noted_again(host, journal):
    state = await cut_request(host, journal)
    state.run_context.messages.append(ANSWER)
    before = state.journal_id
    await note_what_was_saved(host, journal, state)
    assert state.journal_id == before


async def test_a_journal_that_cannot_be_written_keeps_what_was_noted(host, journal):
    state = await cut_request(host, journal)
    state.run_context.messages[:] = cut_by_turns(state.projection.messages)
    before = state.journal_id
    await journal._database.close()
    await note_what_was_saved(host, journal, state)
    assert state.journal_id == before
