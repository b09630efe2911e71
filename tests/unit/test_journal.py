"""What a killed process leaves behind is put back exactly, and nothing else is touched."""

import sqlite3

import pytest
from astrbot.core.agent.message import TextPart, bind_checkpoint_messages
from astrbot_plugin_context_manager.errors import JournalDamaged, StorageUnavailable
from astrbot_plugin_context_manager.fingerprint import fingerprint
from astrbot_plugin_context_manager.journal import Journal

GROUP = "qq:GroupMessage:100"


@pytest.fixture
def journal(database):
    return Journal(database, lambda: 1_000_000)


def turns(first, last):
    messages = []
    for number in range(first, last):
        messages.append({"role": "user", "content": f"question {number}"})
        messages.append({"role": "assistant", "content": f"answer {number}"})
    return messages


LOADED = [*turns(0, 20), {"role": "_checkpoint", "content": {"id": "x"}}]
QUESTION = {"role": "user", "content": [{"type": "text", "text": "now"}]}
ANSWER = {"role": "assistant", "content": "the answer"}
SHORT = [*turns(18, 20), {"role": "_checkpoint", "content": {"id": "x"}}, QUESTION]


async def opened(journal, key="c1", loaded=LOADED, sent=SHORT):
    return await journal.open(GROUP, key, fingerprint(loaded), fingerprint(sent), lambda: loaded)


async def left_behind(database, key="c1"):
    """The journal after the next start."""
    journal = Journal(database, lambda: 1_000_100)
    await journal.load()
    return journal, journal.left_behind.get(key, [])


def table(database, name):
    with sqlite3.connect(database.path) as db:
        return db.execute(f"SELECT * FROM {name}").fetchall()


async def test_a_short_list_is_repaired_with_all_that_was_saved_behind_it(journal, database):
    await opened(journal)
    again, [request] = await left_behind(database)
    stored = [*SHORT, ANSWER, *turns(30, 31)]
    assert await again.repaired(request, stored) == [*LOADED, QUESTION, ANSWER, *turns(30, 31)]


@pytest.mark.parametrize(
    "stored",
    [
        LOADED,
        [*LOADED, QUESTION, ANSWER],
        [],
        [QUESTION, ANSWER],
        [*turns(19, 20), QUESTION, ANSWER],
        [*SHORT[:-1], {"role": "user", "content": "edited"}, ANSWER],
        [{"role": "user", "content": "edited"}, *SHORT[1:], ANSWER],
        SHORT[:-1],
    ],
)
async def test_what_was_not_saved_from_the_cut_stays_as_it_is(journal, database, stored):
    await opened(journal)
    again, [request] = await left_behind(database)
    assert await again.repaired(request, stored) is None


async def test_equal_turns_that_were_never_cut_are_not_doubled(journal, database):
    same = turns(0, 1) * 20
    await opened(journal, loaded=same, sent=[*same[:4], same[0]])
    again, [request] = await left_behind(database)
    assert await again.repaired(request, same) is None
    assert await again.repaired(request, [*same, same[0], ANSWER]) is None


async def test_a_closed_request_leaves_nothing_to_repair(journal, database):
    await journal.close(await opened(journal))
    assert (await left_behind(database))[1] == []


async def test_the_history_is_written_once_and_a_request_is_one_small_row(journal, database):
    await opened(journal, loaded=turns(0, 3000))
    parts = table(database, "journal_parts")
    for number in range(5):
        await journal.close(await opened(journal, loaded=turns(0, 3000)))
        await opened(journal, loaded=turns(0, 3000), sent=turns(2900 + number, 3000))
    assert table(database, "journal_parts") == parts
    rows = table(database, "journal_requests")
    assert max(sum(len(str(value)) for value in row) for row in rows) < 300


async def test_a_finished_turn_is_added_without_writing_the_rest_again(journal, database):
    await opened(journal)
    before = table(database, "journal_parts")
    saved = [*LOADED, QUESTION, ANSWER]
    await journal.follow(GROUP, "c1", saved)
    assert table(database, "journal_parts")[:-1] == before
    asked = False

    def history():
        nonlocal asked
        asked = True
        return saved

    await journal.open(GROUP, "c1", fingerprint(saved), fingerprint(SHORT), history)
    assert not asked


async def test_many_parts_are_joined_and_give_the_same_history(journal, database):
    history = turns(0, 10)
    await opened(journal, loaded=history)
    for number in range(10, 110):
        history = turns(0, number)
        await journal.follow(GROUP, "c1", history)
    assert len(table(database, "journal_parts")) <= 64
    await opened(journal, loaded=history, sent=[QUESTION])
    again, requests = await left_behind(database)
    assert await again.repaired(requests[-1], [QUESTION, ANSWER]) == [*history, QUESTION, ANSWER]


async def test_a_history_that_others_changed_is_written_anew(journal, database):
    await opened(journal)
    edited = [{"role": "user", "content": "edited"}, *LOADED[1:]]
    await opened(journal, loaded=edited)
    again, requests = await left_behind(database)
    stored = [*SHORT, ANSWER]
    assert await again.repaired(requests[1], stored) == [*edited, QUESTION, ANSWER]
    with pytest.raises(JournalDamaged):
        await again.repaired(requests[0], stored)


async def test_conversations_that_were_never_cut_are_not_followed(journal, database):
    await journal.follow(GROUP, "c1", LOADED)
    assert table(database, "journal_parts") == []


@pytest.mark.parametrize("body", [b"", b"no zlib", b"x\x9c\x03\x00\x00\x00\x00\x01"])
async def test_a_corrupt_part_is_an_error_of_its_own(journal, database, body):
    await opened(journal)
    with sqlite3.connect(database.path) as db:
        db.execute("UPDATE journal_parts SET body = ?", (body,))
    again, [request] = await left_behind(database)
    with pytest.raises(JournalDamaged):
        await again.repaired(request, [*SHORT, ANSWER])


async def test_a_missing_part_is_noticed(journal, database):
    await opened(journal)
    await journal.follow(GROUP, "c1", [*LOADED, QUESTION, ANSWER])
    with sqlite3.connect(database.path) as db:
        db.execute("DELETE FROM journal_parts WHERE start = 0")
    again, [request] = await left_behind(database)
    with pytest.raises(JournalDamaged):
        await again.repaired(request, [*SHORT, ANSWER])


async def test_a_journal_lost_with_its_file_is_written_anew(journal, database):
    await opened(journal)
    with sqlite3.connect(database.path) as db:
        db.execute("DELETE FROM journals")
        db.execute("DELETE FROM journal_parts")
    await opened(journal)
    again, requests = await left_behind(database)
    assert await again.repaired(requests[-1], [*SHORT, ANSWER]) == [*LOADED, QUESTION, ANSWER]


async def test_a_read_only_database_is_reported(journal, database):
    async with database.reading() as db:
        await db.execute("PRAGMA query_only = ON")
    with pytest.raises(StorageUnavailable):
        await opened(journal)


async def test_forgetting_leaves_out_conversations_that_are_kept_or_run(journal, database):
    await opened(journal, "c1")
    await journal.close(await opened(journal, "c2"))
    await journal.close(await opened(journal, "c3"))
    await journal.forget(GROUP, ["c2"])
    assert {row[0] for row in table(database, "journals")} == {"c1", "c2"}
    await journal.forget(GROUP)
    assert {row[0] for row in table(database, "journal_parts")} == {"c1"}


async def test_conversations_that_rest_for_long_are_forgotten_at_a_start(journal, database):
    await journal.close(await opened(journal))
    later = Journal(database, lambda: 1_000_000 + 31 * 86400)
    await later.load()
    assert table(database, "journals") == table(database, "journal_parts") == []


# Fingerprints


def test_objects_and_stored_messages_have_the_same_fingerprint():
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    stored = [
        QUESTION,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "found", "tool_call_id": "1"},
        {"role": "_checkpoint", "content": {"id": "x"}},
        ANSWER,
        {"role": "user", "content": [{"type": "text", "text": "this?"}, picture]},
        {"role": "assistant", "content": [{"type": "think", "think": "a cat"}]},
    ]
    assert fingerprint(bind_checkpoint_messages(stored)) == fingerprint(stored)


def test_temporary_parts_do_not_count():
    [message] = bind_checkpoint_messages([QUESTION])
    message.content.append(TextPart(text="recalled").mark_as_temp())
    assert fingerprint([message]) == fingerprint([QUESTION])


@pytest.mark.parametrize(
    "other",
    [
        {**QUESTION, "role": "assistant"},
        {**QUESTION, "content": [{"type": "text", "text": "noW"}]},
        {**QUESTION, "content": [*QUESTION["content"], {"type": "image_url", "image_url": {}}]},
        {**QUESTION, "tool_call_id": "1"},
    ],
)
def test_every_difference_that_a_model_sees_changes_the_fingerprint(other):
    assert fingerprint([other]) != fingerprint([QUESTION])
