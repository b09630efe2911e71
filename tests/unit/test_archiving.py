"""The archive follows its sessions in the background; nothing of it reaches a chat."""

import asyncio
import contextlib
import json
import logging
import random
import sqlite3
from dataclasses import replace

import pytest
from astrbot_plugin_context_manager.archive import Archive, HostConversation
from astrbot_plugin_context_manager.archive_export import json_chunks, markdown_chunks
from astrbot_plugin_context_manager.archive_reader import ArchiveReader, Scope
from astrbot_plugin_context_manager.archive_rows import Turn
from astrbot_plugin_context_manager.archiving import Archivist, Saved
from astrbot_plugin_context_manager.commands_history import ConversationCommands
from astrbot_plugin_context_manager.errors import UnknownConversation
from astrbot_plugin_context_manager.fingerprint import fingerprint
from astrbot_plugin_context_manager.history import History
from astrbot_plugin_context_manager.journal import Journal
from astrbot_plugin_context_manager.search import search
from astrbot_plugin_context_manager.settings import Settings
from astrbot_plugin_context_manager.storage import Storage
from astrbot_plugin_context_manager.texts import Texts

SESSION = "qq:GroupMessage:1"
OTHER = "qq:GroupMessage:2"


class StoredHost:
    """The host's conversations, and its session lock."""

    def __init__(self):
        self.stored = {}
        self.current = {}
        self.reads = []
        self.locked = set()
        self.clock = 1000.0

    def put(self, key, *texts, session_id=SESSION):
        self.clock += 0.001
        roles = ("user", "assistant")
        history = [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]
        self.stored[key] = (HostConversation(key, session_id, "", 500.0, self.clock), history)
        self.current[session_id] = key
        return Saved(*self.stored[key], None)

    async def list_conversations(self, session_id):
        return [c for c, _ in self.stored.values() if c.session_id == session_id]

    async def load_conversation(self, session_id, conversation_id):
        assert session_id in self.locked or not self.locked
        self.reads.append(conversation_id)
        return self.stored[conversation_id][1] if conversation_id in self.stored else None

    @contextlib.asynccontextmanager
    async def session_lock(self, session_id):
        self.locked.add(session_id)
        yield
        self.locked.discard(session_id)

    async def current_conversation_id(self, session_id):
        return self.current.get(session_id)

    def normalised(self, history):
        return None if any(m.get("content") is None for m in history) else history

    async def new_conversation(self, session_id, history, title, make_current):
        key = f"new{len(self.stored)}"
        before = self.current.get(session_id)
        self.put(key, session_id=session_id)
        self.stored[key] = (self.stored[key][0], history)
        if not make_current:
            self.current[session_id] = before
        return key


class Event:
    def __init__(self, text, session_id=SESSION):
        self.message_str, self.unified_msg_origin = text, session_id


@pytest.fixture
async def storage(tmp_path):
    opened = await Storage.open(tmp_path / "context_manager.db", Settings())
    for session_id in (SESSION, OTHER):
        await opened.see_session(session_id, "", "qq", 1)
    yield opened
    await opened.close()


@pytest.fixture
def host():
    return StoredHost()


@pytest.fixture
def journal(storage):
    return Journal(storage.database, lambda: 1000.0)


@pytest.fixture
async def archivist(storage, host, journal):
    cut = set()
    archive, whole = Archive(storage.database), host.load_conversation
    made = Archivist(archive, host, storage, journal, cut.__contains__, whole)
    made.cut = cut
    yield made
    await made.close()


@pytest.fixture
def reader(storage):
    return ArchiveReader(storage.database)


@pytest.fixture
def commands(reader, archivist, host):
    return ConversationCommands(History(reader, archivist, host), Texts("zh-CN"))


async def texts(reader, session_id=SESSION):
    entries, _, _ = await reader.messages(Scope(session_id), 100, 0)
    return [entry.text for entry in reversed(entries)]


async def test_a_request_hands_over_and_does_not_wait(archivist, host, reader):
    archivist.later(host.put("c1", "a", "b"))
    assert await texts(reader) == []
    await archivist.catch_up(SESSION, 5)
    assert await texts(reader) == ["a", "b"]


async def test_the_newest_of_several_states_is_taken_over(archivist, host, reader):
    archivist.later(host.put("c1", "a", "b"))
    archivist.later(host.put("c1", "a", "b", "c", "d"))
    archivist.later(host.put("c2", "e"))
    await archivist.catch_up(SESSION, 5)
    assert sorted(await texts(reader)) == list("abcde")


async def test_what_is_handed_over_as_the_work_ends_is_not_left_behind(archivist, host, reader):
    forget, loop = archivist._journal.forget, asyncio.get_running_loop()

    async def last(*arguments):
        await forget(*arguments)
        # Runs after the task's last step and before the callback of its end.
        loop.call_soon(archivist.later, host.put("c1", "a", "b", "c", "d"))
        archivist._journal.forget = forget

    archivist._journal.forget = last
    archivist.later(host.put("c1", "a", "b"))
    first = archivist._tasks[SESSION]
    await asyncio.wait([first])
    if second := archivist._tasks.get(SESSION):
        await asyncio.wait([second])
    assert await texts(reader) == list("abcd")


async def test_other_conversations_are_read_only_if_they_changed(archivist, host, reader):
    host.put("c1", "a")
    host.put("c2", "b")
    await archivist.catch_up(SESSION, 5)
    assert sorted(host.reads) == ["c1", "c2"]
    host.put("c1", "a", "c")
    await archivist.catch_up(SESSION, 5)
    assert sorted(host.reads) == ["c1", "c1", "c2"]
    assert sorted(await texts(reader)) == list("abc")


async def note(journal, saved):
    """A request of a conversation was cut, and has ended."""
    key, history = saved.conversation.conversation_id, saved.history
    loaded, sent = fingerprint(history), fingerprint([])
    await journal.close(await journal.open(SESSION, key, loaded, sent, lambda: history))


def journal_bodies(storage):
    with sqlite3.connect(storage.database.path) as db:
        return [row[0] for row in db.execute("SELECT body FROM journal_parts")]


@pytest.mark.parametrize("archived", [True, False])
async def test_deleted_conversations_leave_the_journal(archivist, host, storage, journal, archived):
    await storage.update_session(SESSION, {"archive_enabled": archived}, None, 1)
    await note(journal, host.put("c1", "a", "b"))
    await note(journal, host.put("c2", "c", "d"))
    await archivist.catch_up(SESSION, 5)
    assert len(journal_bodies(storage)) == 2
    del host.stored["c1"]
    await archivist.catch_up(SESSION, 5)
    assert len(journal_bodies(storage)) == 1


async def test_deleted_conversations_are_marked(archivist, host, reader):
    host.put("c1", "a", "b")
    await archivist.catch_up(SESSION, 5)
    del host.stored["c1"]
    await archivist.catch_up(SESSION, 5)
    [found] = await reader.conversations(SESSION)
    assert (found.in_host, found.messages) == (False, 2)


async def test_a_conversation_still_cut_is_left_for_later(archivist, host, reader):
    host.put("c1", "short")
    archivist.cut.add("c1")
    await archivist.catch_up(SESSION, 5)
    assert await texts(reader) == []
    archivist.cut.clear()
    await archivist.catch_up(SESSION, 5)
    assert await texts(reader) == ["short"]


async def test_a_session_that_is_switched_off_is_not_even_read(archivist, host, reader, storage):
    await storage.update_session(SESSION, {"archive_enabled": False}, None, 1)
    archivist.later(host.put("c1", "a", "b"))
    await archivist.catch_up(SESSION, 5)
    assert await texts(reader) == [] and host.reads == []


async def test_a_failed_write_is_made_up_for_by_the_next_request(
    archivist, host, reader, storage, caplog
):
    async with storage.database.reading() as db:
        await db.execute("PRAGMA query_only = ON")
    archivist.later(host.put("c1", "a", "b"))
    await archivist.catch_up(SESSION, 5)
    async with storage.database.reading() as db:
        await db.execute("PRAGMA query_only = OFF")
    assert await texts(reader) == []
    archivist.later(host.put("c1", "a", "b", "c", "d"))
    await archivist.catch_up(SESSION, 5)
    assert await texts(reader) == list("abcd")
    assert [r for r in caplog.records if r.levelno >= logging.ERROR] == []


async def test_an_unexpected_error_is_logged_once_and_ends_only_that_session(
    archivist, host, reader, caplog
):
    broken = host.put("c1", "a")
    broken.history.append({"role": "user", "content": object()})
    archivist.later(broken)
    archivist.later(host.put("c2", "b", session_id=OTHER))
    await archivist.catch_up(SESSION, 5)
    await archivist.catch_up(OTHER, 5)
    assert await texts(reader, OTHER) == ["b"]
    assert len([r for r in caplog.records if "could not be archived" in r.getMessage()]) == 1


async def test_closing_ends_what_runs_and_takes_nothing_more(archivist, host, reader, monkeypatch):
    monkeypatch.setitem(Archivist.close.__globals__, "_CLOSE_SECONDS", 0)
    host.session_lock = lambda _: _Forever()
    host.put("c1", "a")
    waiting = asyncio.create_task(archivist.catch_up(SESSION, 60))
    await asyncio.sleep(0)
    await archivist.close()
    await waiting
    archivist.later(host.put("c1", "a"))
    assert archivist._tasks == {}
    assert await texts(reader) == []


class _Forever:
    async def __aenter__(self):
        await asyncio.Event().wait()

    async def __aexit__(self, *_):
        return False


async def test_a_deletion_leaves_nothing_that_comes_back(archivist, host, reader):
    archivist.later(host.put("c1", "a", "b"))
    await archivist.catch_up(SESSION, 5)
    assert await archivist.delete(SESSION) == 2
    archivist.later(host.put("c1", "a", "b", "c", "d"))
    await archivist.catch_up(SESSION, 5)
    assert await texts(reader) == ["c", "d"]


async def test_a_deletion_leaves_no_byte_of_the_journal(archivist, host, storage, journal):
    await note(journal, host.put("c1", *(random.Random(n).randbytes(300).hex() for n in range(99))))
    [body] = journal_bodies(storage)
    await archivist.delete(SESSION)
    path = storage.database.path
    files = [file.read_bytes() for file in path.parent.glob(f"{path.name}*")]
    pieces = [body[start : start + 50] for start in range(0, len(body) - 50, 500)]
    assert pieces and not any(piece in content for piece in pieces for content in files)


async def test_a_deletion_while_a_short_copy_is_stored_brings_nothing_back(
    archivist, host, reader, monkeypatch
):
    async def whole(*_):
        return host.put("other", "a", "b", "c", "d", session_id=OTHER).history

    archivist.later(host.put("c1", "a", "b", "c", "d"))
    await archivist.catch_up(SESSION, 5)
    host.put("c1", "c", "d")
    monkeypatch.setattr(archivist, "_whole", whole)
    await archivist.delete(SESSION)
    archivist.later(host.put("c1", "a", "b", "c", "d", "e", "f"))
    await archivist.catch_up(SESSION, 5)
    assert await texts(reader) == ["e", "f"]


async def test_what_waited_to_be_archived_is_deleted_too(archivist, host, reader):
    archivist.later(host.put("c1", "a", "b"))
    saved = host.put("c1", "a", "b", "c", "d")
    await archivist.delete(SESSION)
    assert await texts(reader) == []
    archivist.later(saved)
    await archivist.catch_up(SESSION, 5)
    assert await texts(reader) == []


# Commands


async def test_a_number_means_what_was_shown_under_it(commands, host, archivist):
    host.put("c1", "the first talk", "x")
    await archivist.catch_up(SESSION, 5)
    host.put("c2", "the second talk", "y")
    shown = await commands.show(Event("/历史会话"))
    second = next(line for line in shown.splitlines() if "first talk" in line)
    number = second.split(".")[0]
    host.put("c3", "a third talk")
    answer = await commands.resume(Event(f"恢复会话 {number}"))
    assert "the first talk" in answer
    made = host.current[SESSION]
    assert [m["content"] for m in host.stored[made][1]] == ["the first talk", "x"]


async def test_a_session_lists_and_resumes_only_its_own(commands, host, archivist):
    host.put("c1", "secret")
    await archivist.catch_up(SESSION, 5)
    assert "secret" not in await commands.show(Event("历史会话", OTHER))
    assert "没有序号为 1" in await commands.resume(Event("恢复会话 1", OTHER))


@pytest.mark.parametrize("words", ["恢复会话", "恢复会话 x", "恢复会话 1 2", "恢复会话 ²"])
async def test_anything_but_a_number_explains_the_command(commands, host, words):
    host.put("c1", "a")
    assert "/恢复会话 2" in await commands.resume(Event(words))


async def test_what_the_host_cannot_load_is_not_brought_back(commands, host, archivist, reader):
    saved = host.put("c1", "a")
    saved.history.append({"role": "user", "content": None})
    assert "无法恢复" in await commands.resume(Event("恢复会话 1"))
    with pytest.raises(UnknownConversation):
        await History(reader, archivist, host).resume(SESSION, "c1", False)
    assert list(host.stored) == ["c1"]


# What was brought back


@pytest.fixture
async def resume(archivist, host, reader):
    async def bring_back(key, session_id=SESSION):
        made = await History(reader, archivist, host).resume(session_id, key, True)
        await archivist.catch_up(session_id, 5)
        return made

    return bring_back


def ask(host, key, at, sender, *texts):
    """A conversation whose messages were all said in one request."""
    return replace(host.put(key, *texts), turn=Turn(0, at, sender))


async def hits(storage, text, **scope):
    found = await search(storage.database, text, Scope(SESSION, **scope))
    assert found.total == len(found.items)
    return [(hit.conversation_id, hit.time, hit.sender) for hit in found.items]


async def test_messages_that_are_brought_back_keep_who_said_them_and_when(
    archivist, host, reader, resume
):
    archivist.later(ask(host, "c1", 777, "小明", "我的猫叫咪咪", "好名字", "是的"))
    await archivist.catch_up(SESSION, 5)
    made = await resume("c1")
    entries, _, _ = await reader.messages(Scope(SESSION, made), 9, 0)
    assert [(e.text, e.time, e.sender) for e in entries] == [
        ("我的猫叫咪咪", 777, "小明"),
        ("好名字", 777, ""),
        ("是的", 777, "小明"),
    ]
    times = {c.conversation_id: c.first_at for c in await reader.conversations(SESSION)}
    assert times == {"c1": 777, made: 777}


async def test_a_message_that_was_brought_back_is_found_once(archivist, host, storage, resume):
    archivist.later(ask(host, "c1", 777, "小明", "我的猫叫咪咪"))
    await archivist.catch_up(SESSION, 5)
    again = await resume(await resume("c1"))
    assert await hits(storage, "咪咪") == [(again, 777, "小明")]
    assert await hits(storage, "小明") == [(again, 777, "小明")]
    assert await hits(storage, "咪咪", conversation_id="c1") == [("c1", 777, "小明")]


async def test_of_the_places_of_a_message_one_that_the_host_holds_is_found(
    archivist, host, storage, resume
):
    archivist.later(ask(host, "c1", 777, "小明", "我的猫叫咪咪"))
    await archivist.catch_up(SESSION, 5)
    del host.stored[await resume("c1")]
    await archivist.catch_up(SESSION, 5)
    assert [key for key, _, _ in await hits(storage, "咪咪")] == ["c1"]


async def test_equal_words_of_two_people_are_both_found(archivist, host, storage, resume):
    archivist.later(ask(host, "c1", 777, "小明", "好的", "嗯", "好的"))
    archivist.later(ask(host, "c2", 777, "小红", "好的"))
    await archivist.catch_up(SESSION, 5)
    made = await resume("c1")
    assert sorted(await hits(storage, "好的")) == [
        ("c2", 777, "小红"),
        (made, 777, "小明"),
        (made, 777, "小明"),
    ]


async def test_what_was_changed_after_it_was_brought_back_is_no_copy(
    archivist, host, reader, storage
):
    archivist.later(ask(host, "c1", 777, "小明", "我的猫叫咪咪", "好名字"))
    await archivist.catch_up(SESSION, 5)
    made = await History(reader, archivist, host).resume(SESSION, "c1", True)
    host.put(made, "我的狗叫咪咪", "好名字")
    await archivist.catch_up(SESSION, 5)
    assert {key for key, _, _ in await hits(storage, "咪咪")} == {"c1", made}


async def test_a_deletion_forgets_what_was_a_copy(archivist, host, storage, resume):
    archivist.later(ask(host, "c1", 777, "小明", "我的猫叫咪咪"))
    await archivist.catch_up(SESSION, 5)
    await resume("c1")
    await archivist.delete(SESSION)
    async with storage.database.reading() as db:
        assert list(await db.execute_fetchall("SELECT * FROM archived_copies")) == []


# Export


async def test_both_formats_hold_every_message(archivist, host, reader):
    archivist.later(host.put("c1", "# not a heading of ours", "b\ud83d"))
    archivist.later(host.put("c2", "c"))
    await archivist.catch_up(SESSION, 5)
    found = await reader.conversations(SESSION)
    file = json.loads("".join([chunk async for chunk in json_chunks(reader, found, 9)]))
    said = {
        c["conversation_id"]: [m["message"] for m in c["history"]] for c in file["conversations"]
    }
    assert said == {key: history for key, (_, history) in host.stored.items()}
    text = "".join([chunk async for chunk in markdown_chunks(reader, found, 9)])
    assert "# not a heading of ours" in text and text.count("\n---\n") == 1
    text.encode()
