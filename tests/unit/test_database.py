"""A database file is migrated whole or not at all, and comes back after a failure."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import aiosqlite
import pytest
from astrbot_plugin_context_manager.archive import Archive, HostConversation
from astrbot_plugin_context_manager.context_logic import WindowMark
from astrbot_plugin_context_manager.database import Database
from astrbot_plugin_context_manager.errors import StorageUnavailable
from astrbot_plugin_context_manager.migrations import MIGRATIONS, ForeignSchema, migrate
from astrbot_plugin_context_manager.settings import Settings
from astrbot_plugin_context_manager.storage import Storage

FIRST_SCHEMA = (Path(__file__).parents[1] / "fixtures" / "schema_v1.sql").read_text("utf-8")
GROUP = "qq:GroupMessage:100"


def execute(path, script):
    with closing(sqlite3.connect(path, timeout=20)) as connection:
        connection.executescript(script)


def schema(path):
    with closing(sqlite3.connect(path)) as connection:
        return set(
            connection.execute(
                'SELECT t.name, c.name, c.type, c."notnull", c.dflt_value, c.pk'
                " FROM sqlite_master t, pragma_table_info(t.name) c WHERE t.type = 'table'"
            )
        )


def damage(path):
    """Overwrites everything but the first page, which opening reads."""
    with open(path, "r+b") as file:
        size = file.seek(0, 2)
        file.seek(4096)
        file.write(b"\xa5" * (size - 4096))


async def apply(path, steps):
    connection = await aiosqlite.connect(path, isolation_level=None)
    try:
        await migrate(connection, steps)
    finally:
        await connection.close()


async def test_the_first_step_still_makes_the_first_schema(tmp_path):
    execute(tmp_path / "fixture.db", FIRST_SCHEMA)
    await apply(tmp_path / "made.db", MIGRATIONS[:1])
    assert schema(tmp_path / "made.db") == schema(tmp_path / "fixture.db")


@pytest.mark.parametrize("rows", [0, 1])
async def test_the_first_schema_is_migrated_with_and_without_rows(tmp_path, rows):
    old, fresh = tmp_path / "old.db", tmp_path / "fresh.db"
    execute(old, FIRST_SCHEMA)
    if rows:
        execute(
            old,
            f"INSERT INTO sessions (session_id, summary, revision) VALUES ('{GROUP}', 'kept', 7);"
            " INSERT INTO summary_versions (session_id, created_at, source, text)"
            f" VALUES ('{GROUP}', 1, 'user', 'kept');"
            " INSERT INTO defaults VALUES ('recent_context_token_budget', 4321);",
        )
    for path in (old, fresh):
        await (await Storage.open(path, Settings())).close()
    assert schema(old) == schema(fresh)
    storage = await Storage.open(old, Settings())
    session = await storage.get_session(GROUP)
    assert (session and (session.summary, session.revision)) == (("kept", "7") if rows else None)
    assert (await storage.list_versions(GROUP, 10, 0))[1] == rows
    new = await storage.see_session("qq:FriendMessage:1", "", "qq", 1)
    assert new.recent_context_token_budget == (4321 if rows else 100_000)
    await storage.close()
    assert not list(tmp_path.glob("*.broken-*"))


async def test_windows_of_a_database_without_shortened_turns_are_still_remembered(tmp_path):
    path = tmp_path / "context_manager.db"
    before = next(i for i, step in enumerate(MIGRATIONS) if "windows ADD COLUMN squeezed" in step)
    await apply(path, MIGRATIONS[:before])
    execute(path, f"INSERT INTO windows VALUES ('c', '{GROUP}', 12, 'hash', 'key', 4)")
    storage = await Storage.open(path, Settings())
    assert await storage.get_window("c") == WindowMark(12, "hash", "key", 4)
    await storage.close()


async def test_a_step_that_fails_half_way_leaves_the_schema_before_it(tmp_path):
    path = tmp_path / "context_manager.db"
    await apply(path, MIGRATIONS)
    before = schema(path)
    bad = "CREATE TABLE half (made TEXT);\nINSERT INTO nowhere VALUES (1);\n"
    with pytest.raises(sqlite3.Error):
        await apply(path, [*MIGRATIONS, bad])
    assert schema(path) == before
    await apply(path, MIGRATIONS)


async def test_two_processes_that_migrate_at_once_do_not_break_each_other(tmp_path):
    path = tmp_path / "context_manager.db"
    await asyncio.gather(*(apply(path, MIGRATIONS) for _ in range(8)))
    assert not list(tmp_path.glob("*.broken-*"))


async def test_a_database_of_a_newer_plugin_is_used_as_it_is(tmp_path):
    path = tmp_path / "context_manager.db"
    later = "ALTER TABLE sessions ADD COLUMN later TEXT NOT NULL DEFAULT '';\n"
    await apply(path, [*MIGRATIONS, later])
    storage = await Storage.open(path, Settings())
    await storage.see_session(GROUP, "群", "qq", 1)
    await storage.close()
    assert not list(tmp_path.glob("*.broken-*"))


async def test_a_database_that_lacks_a_table_is_not_ours(tmp_path):
    path = tmp_path / "context_manager.db"
    await apply(path, MIGRATIONS)
    execute(path, "DROP TABLE windows")
    with pytest.raises(ForeignSchema):
        await apply(path, MIGRATIONS)


async def test_a_second_broken_file_does_not_replace_the_first(tmp_path):
    path = tmp_path / "context_manager.db"
    for number in range(3):
        path.write_bytes(b"broken %d " % number * 1000)
        await (await Database.open(path)).close()
    aside = tmp_path.glob("context_manager.db.broken-*")
    kept = {p.read_bytes()[:8] for p in aside if p.is_file()}
    assert {b"broken %d" % number for number in range(3)} <= kept


async def test_a_file_that_breaks_while_open_is_moved_aside_at_the_next_use(tmp_path, caplog):
    caplog.set_level("INFO", "astrbot")
    storage = await Storage.open(tmp_path / "context_manager.db", Settings())
    for number in range(200):
        await storage.see_session(f"qq:GroupMessage:{number}", "群" * 100, "qq", number)
    async with storage.database.reading() as db:
        await db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    damage(storage.path)
    async with storage.database.reading() as db:
        # Empties the page cache: the file is read again.
        await db.execute("PRAGMA shrink_memory")
    with pytest.raises(StorageUnavailable):
        await storage.list_sessions("群", "", "", 200, 0)
    assert storage.problem
    await storage.see_session(GROUP, "群", "qq", 1)
    assert (await storage.list_sessions("群", "", "", 200, 0))[1] == 1
    assert storage.problem is None
    await storage.close()
    assert list(tmp_path.glob("context_manager.db.broken-*"))
    lines = [record.getMessage() for record in caplog.records]
    assert sum("chats go on" in line for line in lines) == 1
    assert sum("usable again" in line for line in lines) == 1


async def test_a_read_only_database_still_reads(tmp_path, caplog):
    storage = await Storage.open(tmp_path / "context_manager.db", Settings())
    await storage.see_session(GROUP, "群", "qq", 1)
    async with storage.database.reading() as db:
        await db.execute("PRAGMA query_only = ON")
    for _ in range(3):
        with pytest.raises(StorageUnavailable):
            await storage.see_session(GROUP, "群", "qq", 2)
        assert (await storage.get_session(GROUP)).last_seen_at == 1
    assert sum("chats go on" in record.getMessage() for record in caplog.records) == 1
    await storage.close()


async def test_nobody_reads_what_another_has_not_committed(tmp_path):
    database = await Database.open(tmp_path / "context_manager.db")
    written = asyncio.Event()

    async def write_and_fail():
        async with database.writing() as db:
            await db.execute("INSERT INTO defaults VALUES ('x', 1)")
            written.set()
            for _ in range(20):
                await db.execute_fetchall("SELECT 1")
            raise RuntimeError

    async def read():
        await written.wait()
        async with database.reading() as db:
            return list(await db.execute_fetchall("SELECT * FROM defaults"))

    failed, rows = await asyncio.gather(write_and_fail(), read(), return_exceptions=True)
    assert isinstance(failed, RuntimeError)
    assert rows == []
    await database.close()


async def test_a_write_cancelled_at_any_point_is_whole_or_absent(tmp_path):
    database = await Database.open(tmp_path / "context_manager.db")

    async def write(value):
        async with database.writing() as db:
            await db.execute("INSERT INTO defaults VALUES ('a' || ?, 1)", (value,))
            await db.execute("INSERT INTO defaults VALUES ('b' || ?, 1)", (value,))

    for steps in range(40):
        task = asyncio.create_task(write(steps))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    async with database.reading() as db:
        names = {row[0] for row in await db.execute_fetchall("SELECT name FROM defaults")}
    assert all((f"a{n}" in names) == (f"b{n}" in names) for n in range(40))
    await write("last")
    await database.close()


async def test_a_deletion_from_before_its_hashes_were_kept_is_still_known(tmp_path):
    path = tmp_path / "context_manager.db"
    await apply(path, MIGRATIONS[:13])
    execute(
        path,
        "INSERT INTO archived_conversations (conversation_id, session_id, forgotten)"
        f" VALUES ('c1', '{GROUP}', 2)",
    )
    database = await Database.open(path)
    said = [{"role": "user", "content": text} for text in ("deleted", "deleted too", "new")]
    added = await Archive(database).take_over(HostConversation("c1", GROUP, "", 1.0, 2.0), said)
    await database.close()
    assert added == 1
