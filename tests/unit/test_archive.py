"""The archive agrees with the host, and keeps what the host lost."""

import asyncio
import json
import sqlite3

import pytest
from astrbot_plugin_context_manager.archive import STEP, Archive
from astrbot_plugin_context_manager.archive_reader import ArchiveReader, Scope
from astrbot_plugin_context_manager.archive_rows import Turn, content_hash
from astrbot_plugin_context_manager.errors import StorageUnavailable

from .archives import GROUP, OLD, conversation, held, rows, said, texts

PICTURE = "data:image/png;base64," + "iVBORw0KGgo" * 50


@pytest.fixture
def archive(database):
    return Archive(database)


# Taking over


async def test_nothing_is_held_in_memory_of_sessions_that_are_not_being_written(archive):
    histories = [(conversation(f"c{n}", f"qq:{n % 20}"), said("hi", "hello")) for n in range(40)]
    await asyncio.gather(*(archive.take_over(*history) for history in histories))
    assert len(archive._locks) == 0


async def test_a_conversation_is_taken_over_message_by_message(archive, database):
    history = [*said("hi", "hello"), {"role": "_checkpoint", "content": {"id": "x"}}]
    assert await archive.take_over(conversation(), history) == 2
    assert held(database) == said("hi", "hello")
    first = rows(database)[0]
    assert (first["session_id"], first["seq"], first["role"]) == (GROUP, 0, "user")
    assert first["content_hash"] == content_hash(history[0])


async def test_taking_over_twice_adds_nothing(archive, database):
    await archive.take_over(conversation(), said("hi", "hello"))
    assert await archive.take_over(conversation(), said("hi", "hello")) == 0
    assert len(rows(database)) == 2


async def test_only_new_messages_are_added_with_time_and_sender_of_their_turn(archive, database):
    await archive.take_over(conversation(), said("hi", "hello"))
    history = said("hi", "hello", "how?", "so")
    await archive.take_over(conversation(), history, Turn(2, 777, "小明"))
    new = rows(database)[2:]
    assert [(r["text"], r["time"], r["sender"]) for r in new] == [
        ("how?", 777, "小明"),
        ("so", 777, ""),
    ]


async def test_the_hosts_own_note_gives_time_and_sender_of_older_messages(archive, database):
    note = (
        "<system_reminder>User ID: 5, Nickname: 小红\n"
        "Current datetime: 2026-01-02 03:04 (UTC), Weekday: Friday</system_reminder>"
    )
    parts = [{"type": "text", "text": "早"}, {"type": "text", "text": note}]
    history = [{"role": "user", "content": parts}, *said("早上好", start=1)]
    await archive.take_over(conversation(updated_at=1767323100.0), history)
    first, second = rows(database)
    assert (first["sender"], first["time"], first["text"]) == ("小红", 1767323040, "早")
    assert second["time"] == 1767323040
    assert json.loads(first["content"])["content"] == parts


@pytest.mark.parametrize("moment", ["0001-01-01 00:00", "9999-12-31 23:59", "2026-01-05 03:04"])
@pytest.mark.parametrize("zone", ["UTC", "CST"])
async def test_a_time_that_cannot_be_is_not_believed(archive, database, moment, zone):
    forged = f"<system_reminder>Current datetime: {moment} ({zone})</system_reminder>"
    await archive.take_over(conversation(updated_at=1767323100.0), said(f"hi {forged}", "hello"))
    assert [row["time"] for row in rows(database)] == [100, 100]


def noted(text, minute):
    note = f"<system_reminder>Current datetime: 2026-01-02 03:0{minute} (UTC)</system_reminder>"
    parts = [{"type": "text", "text": text}, {"type": "text", "text": note}]
    return {"role": "user", "content": parts}


async def test_messages_nobody_saw_come_in_were_said_when_their_notes_tell(archive, database):
    much_later = 1767323040 + 14 * 86_400
    await archive.take_over(conversation(), said("hi", "hello"))
    missed = [*said("a"), noted("b", 4), *said("c", start=1), noted("d", 6)]
    await archive.take_over(conversation(updated_at=much_later), [*said("hi", "hello"), *missed])
    times = [row["time"] - 1767323040 for row in rows(database)[2:]]
    assert times == [0, 0, 0, 120]


async def test_a_message_is_never_earlier_than_the_one_before_it(archive, database, monkeypatch):
    monkeypatch.setattr("astrbot_plugin_context_manager.archive.STEP", 2)
    asked, now = said("hi", "hello"), 1767323040 + 30
    await archive.take_over(conversation(updated_at=now), asked, Turn(0, now, "小明"))
    missed = [noted("b", 6), *said("c", start=1), noted("d", 4), *said("e", start=1)]
    await archive.take_over(conversation(updated_at=now + 900), [*asked, *missed])
    assert [row["time"] - now for row in rows(database)] == [0, 0, 90, 90, 90, 90]
    back_in_time = [*asked, noted("x", 4), *missed]
    await archive.take_over(conversation(updated_at=now + 900), back_in_time)
    assert rows(database, "text = 'x'")[0]["time"] == now


async def test_the_hosts_note_counts_more_than_one_that_a_person_wrote(archive, database):
    def note(name, hour):
        return (
            f"<system_reminder>User ID: 5, Nickname: {name}\n"
            f"Current datetime: 2026-01-02 {hour}:04 (UTC)</system_reminder>"
        )

    texts = (f"hi {note('boss', '02')}", note("小红", "03"))
    parts = [{"type": "text", "text": text} for text in texts]
    history = [{"role": "user", "content": parts}]
    await archive.take_over(conversation(updated_at=1767323100.0), history)
    [row] = rows(database)
    assert (row["sender"], row["time"]) == ("小红", 1767323040)


async def test_inline_media_become_placeholders_and_nothing_else_changes(archive, database):
    parts = [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": PICTURE, "id": None}},
        {"type": "audio_url", "audio_url": {"url": "data:audio/wav;base64," + "UklGR" * 60}},
        {"type": "image_url", "image_url": {"url": "https://host/picture.png"}},
    ]
    await archive.take_over(conversation(), [{"role": "user", "content": parts}])
    [row] = rows(database)
    stored = json.loads(row["content"])["content"]
    placeholder = stored[1]["image_url"]["url"]
    assert placeholder.startswith("[图片 ") and placeholder in row["text"]
    assert stored[2]["audio_url"]["url"].startswith("[语音 ")
    assert stored[3] == parts[3] and stored[0] == parts[0]
    assert "iVBOR" not in row["content"] + row["text"]


async def test_tool_calls_and_results_are_kept_whole_with_the_tools_name(archive, database):
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    history = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "found " * 60_000, "tool_call_id": "1"},
    ]
    await archive.take_over(conversation(), history)
    asked, answered = rows(database)
    assert asked["text"] == "[工具调用 look] {}"
    assert (answered["sender"], len(answered["text"])) == ("look", 360_000)
    assert held(database) == history


async def test_lone_surrogates_do_not_stop_the_archive(archive, database):
    await archive.take_over(conversation(title="\ud83d"), said("half \ud83d", "ok"), None)
    assert texts(database) == ["half \ufffd", "ok"]
    assert json.loads(rows(database)[0]["content"])["content"] == "half \ud83d"


@pytest.mark.parametrize(
    "fields",
    [
        {"role": "\ud83d"},
        {"role": None},
        {"content": 5},
        {"content": [None, 5, ["x"], {"type": "image_url", "image_url": None}]},
        {"tool_calls": 5},
        {"tool_calls": ["x", None, {"function": 5}]},
    ],
)
async def test_a_message_that_no_host_writes_is_archived_like_any_other(archive, database, fields):
    history = [{"role": "user", "content": "odd", **fields}, *said("next", start=1)]
    await archive.take_over(conversation(), history)
    assert held(database) == history


async def test_a_long_backlog_is_taken_in_bounded_transactions(archive, database, monkeypatch):
    sizes, add = [], Archive.take_over.__globals__["_add"]

    async def counted(db, conversation, before, new):
        sizes.append(len(new))
        await add(db, conversation, before, new)

    monkeypatch.setitem(Archive.take_over.__globals__, "_add", counted)
    history = said(*(f"m{i}" for i in range(STEP * 2 + 7)))
    await archive.take_over(conversation(), history)
    assert sizes == [STEP, STEP, 7]
    assert held(database) == history


# What changed in the host


@pytest.mark.parametrize(
    "after",
    [
        [],
        said("a", "b"),
        said("a", "b", "c", "other"),
        said("a", "edited", "c", "d"),
        said("c", "d"),
        said("all", "new"),
        said("a", "d", "e", "f"),
        said("new", "a", "b", "c", "d", "new end"),
        said("a", "new", "b", "c", "newer", "d"),
    ],
)
async def test_the_archive_follows_every_change_and_keeps_what_left(archive, database, after):
    before = said("a", "b", "c", "d")
    await archive.take_over(conversation(), before)
    await archive.take_over(conversation(), after)
    assert held(database) == after
    assert sorted(set(texts(database))) == sorted({m["content"] for m in before + after})
    places = [(row["conversation_id"], row["seq"]) for row in rows(database)]
    assert len(set(places)) == len(places)


async def test_an_edited_message_stands_at_the_place_of_the_old_one(archive, database):
    await archive.take_over(conversation(), said("a", "b", "c", "d"))
    await archive.take_over(conversation(), said("a", "B", "c", "d"))
    assert texts(database) == ["a", "b", "B", "c", "d"]
    assert texts(database, "in_host = 0") == ["b"]


@pytest.mark.parametrize("seen_empty", [True, False])
async def test_a_reset_sets_what_was_said_before_apart(archive, database, seen_empty):
    await archive.take_over(conversation(), said("a", "b", "c", "d"))
    await archive.take_over(conversation(), said("a", "B", "c", "d"))
    if seen_empty:
        await archive.take_over(conversation(), [])
    await archive.take_over(conversation(), said("x", "y"))
    assert texts(database, "conversation_id = 'c1'") == ["x", "y"]
    assert texts(database, "conversation_id = 'c1#1'") == ["a", "b", "B", "c", "d"]
    first, second = await ArchiveReader(database).conversations(GROUP)
    assert {first.conversation_id: first.in_host, second.conversation_id: second.in_host} == {
        "c1": True,
        "c1#1": False,
    }
    brought_back, _ = await ArchiveReader(database).last_state(GROUP, "c1#1")
    assert brought_back == said("a", "B", "c", "d")
    await archive.take_over(conversation(), said("new"))
    assert texts(database, "conversation_id = 'c1#2'") == ["x", "y"]


@pytest.mark.parametrize(
    "new",
    [
        said("你好", "你好！"),
        said("在吗", "不客气"),
        said("讲个故事", "从前…", "谢谢", "不客气"),
        OLD,
    ],
)
async def test_a_new_chat_after_a_reset_stands_alone_whatever_it_repeats(archive, database, new):
    await archive.take_over(conversation(updated_at=200.5), OLD, Turn(0, 199, "A"))
    await archive.take_over(conversation(updated_at=900.5), new, Turn(0, 900, "B"))
    more = [*new, *said("新问题", "新回答")]
    await archive.take_over(conversation(updated_at=950.5), more, Turn(len(new), 950, "B"))
    found = [(row["text"], row["time"]) for row in rows(database, "conversation_id = 'c1'")]
    assert found == [(m["content"], 900 if i < len(new) else 950) for i, m in enumerate(more)]
    assert {row["sender"] for row in rows(database, "conversation_id = 'c1'")} == {"B", ""}
    assert texts(database, "conversation_id = 'c1#1'") == [m["content"] for m in OLD]
    assert (await ArchiveReader(database).last_state(GROUP, "c1#1"))[0] == OLD


async def test_a_reset_within_a_second_is_none_the_less_seen(archive, database):
    await archive.take_over(conversation(updated_at=200.2), OLD, Turn(0, 200, "A"))
    await archive.take_over(conversation(updated_at=200.9), OLD[:2], Turn(0, 200, "A"))
    assert texts(database, "conversation_id = 'c1'") == ["你好", "你好！"]
    assert len(texts(database, "conversation_id = 'c1#1'")) == len(OLD)


async def test_a_first_answer_made_anew_leaves_both_with_their_times(archive, database):
    await archive.take_over(conversation(updated_at=200.5), said("q", "old"), Turn(0, 200, "A"))
    await archive.take_over(conversation(updated_at=300.5), said("q", "new"), Turn(0, 300, "A"))
    reader = ArchiveReader(database)
    entries = [
        e for key in ("c1#1", "c1") for e in (await reader.messages(Scope(GROUP, key), 9, 0))[0]
    ]
    assert [(e.text, e.time, e.in_host) for e in entries] == [
        ("q", 200, False),
        ("old", 200, False),
        ("q", 300, True),
        ("new", 300, True),
    ]


async def test_a_first_turn_that_the_page_saw_before_it_was_told_is_there_once(archive, database):
    await archive.take_over(conversation(), said("a", "b"))
    assert await archive.take_over(conversation(), said("a", "b"), Turn(0, 150, "A")) == 0
    assert [(row["conversation_id"], row["text"]) for row in rows(database)] == [
        ("c1", "a"),
        ("c1", "b"),
    ]


async def test_a_failed_request_without_history_changes_nothing(archive, database):
    await archive.take_over(conversation(updated_at=200.5), OLD)
    assert await archive.take_over(conversation(updated_at=200.5), OLD, Turn(0, 900, "A")) == 0
    assert held(database) == OLD and len(rows(database)) == len(OLD)


async def test_a_conversation_without_a_title_is_named_by_how_it_began(archive, database):
    await archive.take_over(conversation(), said("where is it?\nplease", "here"))
    await archive.take_over(conversation("c2", title="Named"), said("x"))
    await archive.take_over(conversation("c2"), said("x", "y"))
    titles = {c.conversation_id: c.title for c in await ArchiveReader(database).conversations()}
    assert titles == {"c1": "where is it?", "c2": "Named"}


async def test_equal_messages_are_told_apart_by_their_place(archive, database):
    await archive.take_over(conversation(), said(*["same"] * 40))
    await archive.take_over(conversation(), said(*["same"] * 42))
    assert held(database) == said(*["same"] * 42)
    assert len(rows(database)) == 42


async def test_a_host_that_stores_empty_fields_changes_no_message(archive, database):
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    before = [{"role": "assistant", "tool_calls": [call]}]
    after = [{"role": "assistant", "content": None, "tool_calls": [{**call, "extra": None}]}]
    await archive.take_over(conversation(), before)
    assert await archive.take_over(conversation(), after) == 0


async def test_a_deleted_conversation_keeps_its_messages(archive, database):
    await archive.take_over(conversation(), said("a", "b"))
    await archive.take_over(conversation("c2"), said("c", "d"))
    await archive.mark_deleted(GROUP, ["c1"])
    reader = ArchiveReader(database)
    found = {c.conversation_id: c for c in await reader.conversations(GROUP)}
    assert (found["c1"].in_host, found["c1"].messages) == (False, 2)
    assert found["c2"].in_host
    entries, _, _ = await reader.messages(Scope(GROUP, "c1"), 10, 0)
    assert [(e.text, e.in_host) for e in entries] == [("a", False), ("b", False)]


# Reading


async def test_a_conversation_is_read_by_pages_and_at_the_place_of_a_message(archive, database):
    await archive.take_over(conversation(), said(*(f"m{i}" for i in range(100))))
    reader = ArchiveReader(database)
    entries, total, _ = await reader.messages(Scope(GROUP, "c1"), 10, 20)
    assert ([e.text for e in entries][:2], total) == (["m20", "m21"], 100)
    for wanted, first in ((50, 45), (2, 0), (99, 90)):
        row_id = rows(database, f"text = 'm{wanted}'")[0]["id"]
        entries, _, offset = await reader.messages(Scope(GROUP, "c1"), 10, 0, row_id)
        assert offset == first and f"m{wanted}" in [e.text for e in entries]


async def test_without_a_conversation_the_newest_messages_come_first(archive, database):
    await archive.take_over(conversation(), said("a", "b"))
    await archive.take_over(conversation("c2"), said("c", "d"))
    await archive.take_over(conversation("c3", "qq:GroupMessage:2"), said("e"))
    reader = ArchiveReader(database)
    entries, total, _ = await reader.messages(Scope(GROUP), 3, 0)
    assert ([e.text for e in entries], total) == (["d", "c", "b"], 4)
    entries, total, _ = await reader.messages(Scope(None, role="user", since=1, until=10**10), 9, 0)
    assert ([e.text for e in entries], total) == (["e", "c", "a"], 3)


async def test_a_whole_conversation_is_read_in_pieces_with_everything_stored(
    archive, database, monkeypatch
):
    monkeypatch.setitem(ArchiveReader.whole.__globals__, "_CHUNK", 7)
    history = said(*(f"m{i}" for i in range(20)))
    await archive.take_over(conversation(), history)
    await archive.take_over(conversation(), said("M0", *(f"m{i}" for i in range(1, 20))))
    found = [pair async for pair in ArchiveReader(database).whole("c1")]
    assert [message["content"] for _, message in found][:3] == ["m0", "M0", "m1"]
    assert [entry.in_host for entry, _ in found] == [False, *[True] * 20]


async def test_media_that_were_not_kept_come_back_as_text(archive, database):
    parts = [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": PICTURE}},
        {"type": "image_url", "image_url": {"url": "https://host/picture.png"}},
    ]
    await archive.take_over(conversation(), [{"role": "user", "content": parts}])
    [message], _ = await ArchiveReader(database).last_state(GROUP, "c1")
    text, picture, linked = message["content"]
    assert (text, linked) == (parts[0], parts[2])
    assert picture["type"] == "text" and picture["text"].startswith("[图片 ")


async def test_another_sessions_conversation_cannot_be_brought_back(archive, database):
    await archive.take_over(conversation(), said("a"))
    assert await ArchiveReader(database).last_state("qq:GroupMessage:2", "c1") == ([], [])


# Failures


async def test_a_failed_step_changes_nothing_and_the_next_call_makes_up_for_it(
    archive, database, monkeypatch
):
    await archive.take_over(conversation(), said("a", "b"))

    async def full(*_):
        raise sqlite3.OperationalError("database or disk is full")

    names = Archive.take_over.__globals__
    with monkeypatch.context() as patch:
        patch.setitem(names, "_note_end", full)
        with pytest.raises(StorageUnavailable):
            await archive.take_over(conversation(), said("a", "c", "d"))
    assert held(database) == said("a", "b") and len(rows(database)) == 2
    await archive.take_over(conversation(), said("a", "c", "d"))
    assert held(database) == said("a", "c", "d")


async def test_a_read_only_database_is_reported_and_left_as_it_is(archive, database):
    await archive.take_over(conversation(), said("a", "b"))
    async with database.reading() as db:
        await db.execute("PRAGMA query_only = ON")
    with pytest.raises(StorageUnavailable):
        await archive.take_over(conversation(), said("a", "b", "c"))
    assert held(database) == said("a", "b")


async def test_a_call_cancelled_in_a_step_leaves_whole_steps_only(archive, database, monkeypatch):
    reached, names = asyncio.Event(), Archive.take_over.__globals__
    add = names["_add"]

    async def stuck(db, conversation, before, new):
        await add(db, conversation, before, new)
        if (await db.execute_fetchall("SELECT max(seq) FROM archived_messages"))[0][0] > STEP:
            reached.set()
            await asyncio.Event().wait()

    history = said(*(f"m{i}" for i in range(STEP * 2)))
    with monkeypatch.context() as patch:
        patch.setitem(names, "_add", stuck)
        task = asyncio.create_task(archive.take_over(conversation(), history))
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert held(database) == history[:STEP]
    await archive.take_over(conversation(), history)
    assert held(database) == history


async def test_two_calls_for_one_session_do_not_mix(archive, database):
    longer = said(*(f"m{i}" for i in range(STEP * 2)))
    await asyncio.gather(
        archive.take_over(conversation(), longer[:STEP]),
        archive.take_over(conversation(), longer),
        archive.take_over(conversation("c2"), longer),
    )
    assert held(database) == longer == held(database, "c2")
    assert len(rows(database)) == 4 * STEP
