"""What is written stays, what fails changes nothing, and chat never notices."""

import asyncio
import sqlite3

import pytest
from astrbot_plugin_context_manager.context_logic import WindowMark
from astrbot_plugin_context_manager.errors import (
    InvalidChange,
    StaleRevision,
    StorageUnavailable,
    UnknownSession,
)
from astrbot_plugin_context_manager.migrations import MIGRATIONS
from astrbot_plugin_context_manager.settings import Settings
from astrbot_plugin_context_manager.storage import Storage, kind_of

GROUP = "qq:GroupMessage:100"


@pytest.fixture
async def storage(tmp_path):
    opened = await Storage.open(tmp_path / "data" / "context_manager.db", Settings())
    yield opened
    await opened.close()


async def seen(storage, session_id=GROUP, name="群", now=100):
    return await storage.see_session(session_id, name, "qq", now)


def commit(storage, text="new", base="", **more):
    values = {
        "base_summary": base,
        "model": "m",
        "conversation_id": "c",
        "covered": 4,
        "prefix_hash": "h",
        "tokens": 3,
        "source": "model",
        "now": 200,
    }
    return storage.commit_summary(GROUP, text, **values | more)


async def test_a_new_database_has_the_ten_columns_and_runs_in_wal_mode(storage):
    with sqlite3.connect(storage.path) as db:
        columns = {row[1] for row in db.execute("PRAGMA table_info(sessions)")}
        assert db.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
    assert columns >= {
        "session_id",
        "display_name",
        "platform",
        "fixed_memory",
        "summary",
        "compress_prompt",
        "recent_context_token_budget",
        "summary_target_tokens",
        "last_seen_at",
        "updated_at",
    }


async def test_a_session_appears_at_its_first_request_with_the_defaults(storage):
    session = await seen(storage)
    assert (session.display_name, session.platform, session.kind) == ("群", "qq", "group")
    assert session.recent_context_token_budget == 100_000
    assert session.summary_target_tokens == 1500


async def test_being_seen_again_moves_neither_revision_nor_updated_at(storage):
    first = await seen(storage)
    second = await seen(storage, name="新名字", now=300)
    assert (second.revision, second.updated_at) == (first.revision, first.updated_at)
    assert (second.display_name, second.last_seen_at) == ("新名字", 300)


async def test_a_missing_name_does_not_overwrite_a_known_one(storage):
    await seen(storage)
    assert (await seen(storage, name="")).display_name == "群"


async def test_a_change_moves_the_revision_and_survives_a_restart(tmp_path):
    path = tmp_path / "context_manager.db"
    first = await Storage.open(path, Settings())
    session = await seen(first)
    changed = await first.update_session(GROUP, {"fixed_memory": "记住"}, session.revision, 200)
    assert changed.revision != session.revision
    await first.close()
    second = await Storage.open(path, Settings())
    assert (await second.get_session(GROUP)).fixed_memory == "记住"
    await second.close()


async def test_a_stale_revision_changes_nothing_and_carries_the_current_row(storage):
    session = await seen(storage)
    await storage.update_session(GROUP, {"summary": "one"}, session.revision, 200)
    with pytest.raises(StaleRevision) as raised:
        await storage.update_session(GROUP, {"summary": "two"}, session.revision, 300)
    assert raised.value.current.summary == "one"
    assert (await storage.get_session(GROUP)).summary == "one"


async def test_an_unknown_session_cannot_be_changed(storage):
    with pytest.raises(UnknownSession):
        await storage.update_session("nobody", {"summary": "x"}, None, 1)


async def test_only_editable_columns_can_be_changed(storage):
    session = await seen(storage)
    with pytest.raises(InvalidChange):
        await storage.update_session(GROUP, {"session_id": "x"}, session.revision, 1)


async def test_lone_surrogates_are_replaced_on_the_way_in(storage):
    session = await seen(storage, name="a\ud800b")
    assert session.display_name == "a\ufffdb"
    changed = await storage.update_session(GROUP, {"summary": "\udfff"}, session.revision, 1)
    assert changed.summary == "\ufffd"


async def test_a_summary_committed_over_a_human_edit_becomes_a_conflicting_version(storage):
    session = await seen(storage)
    await storage.update_session(GROUP, {"summary": "edited"}, session.revision, 150)
    version, conflicting = await commit(storage, base="")
    assert conflicting and version.conflicting
    assert (await storage.get_session(GROUP)).summary == "edited"
    assert await storage.latest_coverage(GROUP) is None


async def test_a_committed_summary_moves_the_revision_and_records_what_it_covers(storage):
    session = await seen(storage)
    version, conflicting = await commit(storage)
    assert not conflicting
    current = await storage.get_session(GROUP)
    assert current.summary == "new" and current.revision != session.revision
    assert (await storage.latest_coverage(GROUP)) == version
    assert (version.covered, version.conversation_id, version.prefix_hash) == (4, "c", "h")


async def test_applying_to_all_changes_every_session_and_the_default_for_new_ones(storage):
    await seen(storage)
    await seen(storage, "qq:FriendMessage:1")
    assert await storage.apply_to_all({"recent_context_token_budget": 5000}, 200) == 2
    new = await seen(storage, "qq:FriendMessage:2")
    assert new.recent_context_token_budget == 5000
    assert (await storage.get_session(GROUP)).recent_context_token_budget == 5000


async def test_a_window_is_remembered_by_conversation(storage):
    mark = WindowMark(12, "hash", "key")
    await storage.set_window("c1", GROUP, mark)
    assert await storage.get_window("c1") == mark
    assert await storage.get_window("c2") is None


async def test_what_was_shortened_in_a_window_is_remembered(storage):
    mark = WindowMark(12, "hash", "key", 4, ((0, 240), (12, 16000)))
    await storage.set_window("c1", GROUP, mark)
    assert await storage.get_window("c1") == mark


async def test_the_list_is_sorted_by_activity_filtered_and_paged(storage):
    for number in range(5):
        await seen(storage, f"qq:GroupMessage:{number}", name=f"群{number}", now=number)
    await storage.see_session("tg:FriendMessage:9", "Ann", "tg", 50)
    rows, total = await storage.list_sessions("", "group", "qq", 2, 1)
    assert ([row.display_name for row in rows], total) == (["群3", "群2"], 5)


async def test_a_search_for_a_whole_id_begins_with_that_session(storage):
    for number in range(30):
        await seen(storage, f"qq:GroupMessage:1{number}", now=100 + number)
    await seen(storage, "qq:GroupMessage:1", now=1)
    rows, total = await storage.list_sessions("qq:GroupMessage:1", "", "", 2, 0)
    assert ([row.session_id for row in rows], total) == (
        ["qq:GroupMessage:1", "qq:GroupMessage:129"],
        31,
    )


async def test_search_takes_wildcards_literally(storage):
    await seen(storage, name="100%_真")
    await seen(storage, "qq:GroupMessage:2", name="other")
    for q in ("%", "_", "100%"):
        assert (await storage.list_sessions(q, "", "", 10, 0))[1] == 1
    assert (await storage.list_sessions("\\", "", "", 10, 0))[1] == 0


async def test_many_parallel_writes_all_arrive(storage):
    await asyncio.gather(*(seen(storage, f"qq:GroupMessage:{n}", now=n) for n in range(200)))
    assert (await storage.list_sessions("", "", "", 1, 0))[1] == 200


async def test_a_cancelled_write_leaves_the_database_usable(storage):
    await seen(storage)
    for _ in range(20):
        task = asyncio.create_task(storage.update_session(GROUP, {"summary": "x"}, None, 1))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert (await storage.update_session(GROUP, {"summary": "y"}, None, 2)).summary == "y"


async def test_a_corrupt_file_is_moved_aside_and_kept(tmp_path):
    path = tmp_path / "context_manager.db"
    path.write_bytes(b"this is no database at all" * 100)
    storage = await Storage.open(path, Settings())
    await seen(storage)
    await storage.close()
    [aside] = tmp_path.glob("context_manager.db.broken-*")
    assert aside.read_bytes().startswith(b"this is no database")


async def test_a_file_with_a_foreign_schema_is_moved_aside(tmp_path):
    path = tmp_path / "context_manager.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE sessions (something TEXT)")
    storage = await Storage.open(path, Settings())
    await seen(storage)
    await storage.close()
    assert list(tmp_path.glob("context_manager.db.broken-*"))


async def test_a_database_held_by_another_process_is_not_moved_aside(tmp_path):
    path = tmp_path / "context_manager.db"
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    storage = await Storage.open(path, Settings())
    assert storage.problem
    holder.close()
    await seen(storage)
    assert storage.problem is None
    await storage.close()
    assert not list(tmp_path.glob("context_manager.db.broken-*"))


async def test_a_database_that_could_not_be_opened_is_opened_once_it_can_be(tmp_path, caplog):
    caplog.set_level("INFO", "astrbot")
    blocker = tmp_path / "folder"
    blocker.write_text("")
    storage = await Storage.open(blocker / "context_manager.db", Settings())
    for _ in range(2):
        with pytest.raises(StorageUnavailable):
            await seen(storage)
    assert storage.problem
    blocker.unlink()
    assert (await seen(storage)).session_id == GROUP
    assert storage.problem is None
    await storage.close()
    lines = [record.getMessage() for record in caplog.records]
    assert sum("chats go on" in line for line in lines) == 1
    assert sum("usable again" in line for line in lines) == 1


async def test_closing_a_database_that_was_never_open_is_no_error(tmp_path):
    (tmp_path / "file").write_text("")
    storage = await Storage.open(tmp_path / "file" / "context_manager.db", Settings())
    await storage.close()


async def test_a_failing_write_is_logged_once_and_so_is_the_recovery(storage, caplog):
    caplog.set_level("INFO", "astrbot")
    await seen(storage)
    holder = sqlite3.connect(storage.path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    for _ in range(2):
        with pytest.raises(StorageUnavailable):
            await seen(storage, now=500)
    assert (await storage.get_session(GROUP)).last_seen_at == 100
    assert storage.problem
    holder.close()
    await seen(storage, now=600)
    assert storage.problem is None
    messages = [record.getMessage() for record in caplog.records]
    assert sum("chats go on" in m for m in messages) == 1
    assert sum("usable again" in m for m in messages) == 1


async def test_a_closed_database_is_an_error_of_ours(tmp_path):
    storage = await Storage.open(tmp_path / "context_manager.db", Settings())
    await storage.close()
    with pytest.raises(StorageUnavailable):
        await storage.get_session(GROUP)


async def test_the_first_schema_opens_with_and_without_rows(tmp_path):
    for rows in (0, 1):
        path = tmp_path / f"{rows}.db"
        with sqlite3.connect(path) as db:
            db.executescript(MIGRATIONS[0])
            db.execute("PRAGMA user_version = 1")
            if rows:
                db.execute("INSERT INTO sessions (session_id, summary) VALUES ('s', 'kept')")
        storage = await Storage.open(path, Settings())
        session = await storage.get_session("s")
        assert (session.summary if session else None) == ("kept" if rows else None)
        await storage.close()


def test_the_kind_of_a_session_is_read_from_its_id():
    assert kind_of("qq:GroupMessage:1") == "group"
    assert kind_of("qq:FriendMessage:1") == "private"
    assert kind_of("webchat:FriendMessage:x") == "webchat"
    assert kind_of("strange") == "other"


async def test_a_session_that_never_asked_a_model_has_no_time_of_a_request(storage):
    session = await storage.ensure_session(GROUP, "qq", 100)
    assert (session.last_seen_at, session.updated_at, session.platform) == (0, 100, "qq")
    await seen(storage, now=200)
    again = await storage.ensure_session(GROUP, "other", 300)
    assert (again.last_seen_at, again.display_name, again.platform) == (200, "群", "qq")


async def test_an_emptied_summary_covers_nothing_and_an_edited_one_what_it_did(storage):
    await seen(storage)
    version, _ = await commit(storage)
    await storage.update_session(GROUP, {"summary": "edited"}, None, 300)
    assert await storage.latest_coverage(GROUP) == version
    await storage.update_session(GROUP, {"summary": ""}, None, 301)
    assert await storage.latest_coverage(GROUP) is None


async def test_saving_the_same_summary_makes_no_version(storage):
    await seen(storage)
    for _ in range(2):
        await storage.update_session(GROUP, {"summary": "same \ud800"}, None, 200)
    assert (await storage.list_versions(GROUP, 10, 0))[1] == 1


@pytest.mark.parametrize(
    "name",
    [
        '"><img src=x onerror=alert(1)>',
        "'; DROP TABLE sessions; --",
        "\u202eevil",
        "a\x00b",
        "👩‍👩‍👧‍👧",
    ],
)
async def test_hostile_names_are_stored_and_found_as_they_are(storage, name):
    assert (await seen(storage, name=name)).display_name == name
    rows, total = await storage.list_sessions(name.split("\x00")[0], "", "", 10, 0)
    assert (rows[0].display_name, total) == (name, 1)


async def test_a_name_without_end_is_cut(storage):
    assert len((await seen(storage, name="名" * 100_000)).display_name) == 200
