"""What a user deleted from the archive is gone for good, and all that is new is archived."""

import sqlite3

import pytest
from astrbot_plugin_context_manager.archive import Archive, Held
from astrbot_plugin_context_manager.archive_reader import ArchiveReader
from astrbot_plugin_context_manager.archive_rows import Turn, content_hash
from astrbot_plugin_context_manager.database import Database

from .archives import GROUP, OLD, conversation, rows, said, texts


@pytest.fixture
def archive(database):
    return Archive(database)


def held_by_host(history, updated_at=200.5):
    """The host's conversation, as it is told with a deletion."""
    return [Held("c1", updated_at, [content_hash(message) for message in history])]


def known_hashes(database):
    with sqlite3.connect(database.path) as db:
        return [row[0] for row in db.execute("SELECT forgotten_hashes FROM archived_conversations")]


async def test_a_deleted_archive_leaves_no_byte_in_the_files(archive, database):
    await archive.take_over(conversation(), said(*(f"secretword {i}" for i in range(3000))))
    await archive.take_over(conversation("c2", "qq:GroupMessage:2"), said("other chat"))
    assert await archive.delete_session(GROUP, []) == 3000
    files = list(database.path.parent.glob("context_manager.db*"))
    assert not any(b"secretword" in path.read_bytes() for path in files)
    assert texts(database) == ["other chat"]
    assert sum(path.stat().st_size for path in files) < 300_000


async def test_a_database_from_before_the_archive_gives_its_pages_back_too(tmp_path):
    path = tmp_path / "old.db"
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA auto_vacuum = NONE")
        db.execute("VACUUM")
    database = await Database.open(path)
    archive = Archive(database)
    await archive.take_over(conversation(), said(*(f"secretword {i}" for i in range(3000))))
    await archive.delete_session(GROUP, [])
    await database.close()
    assert path.stat().st_size < 300_000
    assert b"secretword" not in path.read_bytes()


async def test_what_was_deleted_does_not_come_back_with_the_next_message(archive, database):
    await archive.take_over(conversation(), said("a", "b"))
    await archive.delete_session(GROUP, held_by_host(said("a", "b")))
    await archive.take_over(conversation(), said("a", "b", "c", "d"))
    assert texts(database) == ["c", "d"]
    assert (await ArchiveReader(database).conversations(GROUP))[0].messages == 2


async def test_a_reset_after_the_deletion_starts_the_archive_anew(archive, database):
    await archive.take_over(conversation(), said("a", "b"))
    await archive.delete_session(GROUP, held_by_host(said("a", "b")))
    await archive.take_over(conversation(), said("x"))
    await archive.take_over(conversation(), said("x", "y", "z"))
    assert texts(database) == ["x", "y", "z"]


@pytest.mark.parametrize(
    ("after", "archived"),
    [
        ([*OLD[:4], *said("不用了", "好的")], ["不用了", "好的"]),
        ([*OLD[:5], *said("再见", start=1)], ["再见"]),
        ([*OLD[:2], *said("改了", "新的")], ["改了", "新的"]),
        (OLD[:4], []),
        ([*OLD[2:], *said("新问题", "新回答")], ["新问题", "新回答"]),
        ([*OLD[:2], *said("改了"), *OLD[3:]], ["改了"]),
        (said("早", "不客气"), ["早", "不客气"]),
    ],
)
@pytest.mark.parametrize("seen_before", [True, False])
async def test_only_what_was_deleted_stays_away_whatever_changes_in_the_host(
    archive, database, after, archived, seen_before
):
    await archive.delete_session(GROUP, held_by_host(OLD))
    if seen_before:
        await archive.take_over(conversation(), OLD)
    await archive.take_over(conversation(updated_at=300.5), after)
    assert texts(database) == archived
    later = [*after, *said("后来", "不客气")]
    await archive.take_over(conversation(updated_at=400.5), later, Turn(len(after), 400, "A"))
    assert texts(database) == [*archived, "后来", "不客气"]


@pytest.mark.parametrize("start", [0, 4])
async def test_what_a_request_added_is_archived_even_if_it_equals_what_was_deleted(
    archive, database, start
):
    await archive.delete_session(GROUP, held_by_host(OLD))
    after = [*OLD[:start], OLD[4], OLD[5]]
    await archive.take_over(conversation(updated_at=300.5), after, Turn(start, 300, "B"))
    found = [(row["text"], row["time"], row["sender"]) for row in rows(database)]
    assert found == [("谢谢", 300, "B"), ("不客气", 300, "")]


async def test_a_turn_that_is_told_after_its_deletion_stays_away(archive, database):
    await archive.delete_session(GROUP, held_by_host(OLD[:2]))
    await archive.take_over(conversation(), OLD[:2], Turn(0, 200, "A"))
    assert texts(database) == []


async def test_what_is_archived_after_a_deletion_keeps_its_turn_and_its_place(archive, database):
    await archive.delete_session(GROUP, held_by_host(OLD))
    history = [*OLD, *said("新问题", "新回答", "又一个", "答")]
    await archive.take_over(conversation(updated_at=300.5), history[:8], Turn(6, 300, "A"))
    await archive.take_over(conversation(updated_at=400.5), history, Turn(8, 400, "B"))
    found = [(row["seq"], row["text"], row["time"], row["sender"]) for row in rows(database)]
    assert found == [
        (0, "新问题", 300, "A"),
        (1, "新回答", 300, ""),
        (2, "又一个", 400, "B"),
        (3, "答", 400, ""),
    ]
    # The only archived turn is made anew: the conversation still goes on.
    await archive.take_over(conversation(updated_at=500.5), [*OLD, *said("再来")])
    assert {row["conversation_id"] for row in rows(database)} == {"c1"}


async def test_no_title_tells_what_was_deleted(archive, database):
    await archive.delete_session(GROUP, held_by_host(OLD))
    await archive.take_over(conversation(), [*OLD, *said("新问题", "新回答")])
    assert [c.title for c in await ArchiveReader(database).conversations()] == ["新问题"]


async def test_hashes_of_what_was_deleted_stay_no_longer_than_the_host_holds_it(archive, database):
    await archive.delete_session(GROUP, held_by_host(OLD))
    [whole] = known_hashes(database)
    assert len(whole) <= 8 * len(OLD)
    await archive.take_over(conversation(), OLD[:2])
    assert known_hashes(database) == [whole[: len(whole) // 3]]
    await archive.mark_deleted(GROUP, ["c1"])
    assert known_hashes(database) == [b""]


@pytest.mark.parametrize(
    ("after", "turn", "archived"),
    [
        ([*OLD, *said("新", "答")], None, ["新", "答"]),
        ([*OLD[:4], *said("新", "答")], Turn(4, 300, ""), ["新", "答"]),
        ([*OLD[:2], *said("新", "答")], Turn(2, 300, ""), ["新", "答"]),
        (said("新", "答"), Turn(0, 300, ""), ["新", "答"]),
        (said("新", "答"), None, ["新", "答"]),
    ],
)
async def test_a_deletion_of_an_older_version_still_holds(archive, database, after, turn, archived):
    async with database.writing() as db:
        await db.execute(
            "INSERT INTO archived_conversations (conversation_id, session_id, forgotten)"
            " VALUES ('c1', ?, 6)",
            (GROUP,),
        )
    await archive.take_over(conversation(updated_at=300.5), after, turn)
    assert texts(database) == archived
    # From now on it is known what was deleted.
    await archive.take_over(conversation(updated_at=400.5), [*after[:-1], *said("x", start=1)])
    assert texts(database, "in_host = 1") == [*archived[:-1], "x"]
