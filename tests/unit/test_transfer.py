"""An export comes back as it was, and a file that is not one changes nothing."""

import json
import time

import pytest
from astrbot_plugin_context_manager.errors import InvalidChange
from astrbot_plugin_context_manager.importing import import_sessions
from astrbot_plugin_context_manager.settings import Settings
from astrbot_plugin_context_manager.storage import Storage
from astrbot_plugin_context_manager.transfer import (
    JSON_TAIL,
    json_head,
    json_session,
    markdown_session,
    parse,
)

from .growth import FACTOR, IN_LINE

GROUP = "qq:GroupMessage:100"
HOSTILE = "</textarea><script>alert(1)</script>\u202e'; DROP TABLE sessions; --"


@pytest.fixture
async def storage(tmp_path):
    opened = await Storage.open(tmp_path / "context_manager.db", Settings())
    yield opened
    await opened.close()


@pytest.fixture
async def other(tmp_path):
    opened = await Storage.open(tmp_path / "other.db", Settings())
    yield opened
    await opened.close()


async def filled(storage):
    await storage.see_session(GROUP, "群\n名", "qq", 100)
    return await storage.update_session(
        GROUP, {"fixed_memory": HOSTILE, "summary": "# 摘要"}, None, 200
    )


async def exported(storage, history=()):
    parts = []
    for session_id in await storage.session_ids():
        session = await storage.get_session(session_id)
        versions = await storage.all_versions(session_id)
        parts.append(json_session(session, versions, "c", list(history)))
    return (json_head(1) + ",\n".join(parts) + JSON_TAIL).encode()


def document(*sessions, **more):
    whole = {"format": "astrbot_plugin_context_manager", "version": 1, "sessions": list(sessions)}
    return json.dumps(whole | more).encode()


async def put(storage, content, apply=True):
    return await import_sessions(storage, parse(content), apply=apply, now=500, max_memories=200)


def field_of_refusal(content):
    with pytest.raises(InvalidChange) as refusal:
        parse(content)
    return refusal.value.field


async def test_an_export_gives_the_same_sessions_to_another_installation(storage, other):
    session = await filled(storage)
    await put(other, await exported(storage))
    copy = await other.get_session(GROUP)
    assert copy.fixed_memory == HOSTILE and copy.summary == "# 摘要"
    assert (copy.display_name, copy.platform, copy.kind) == ("群\n名", "qq", "group")
    assert copy.last_seen_at == session.last_seen_at
    before, after = await storage.all_versions(GROUP), await other.all_versions(GROUP)
    assert [(v.text, v.source, v.created_at) for v in after] == [
        (v.text, v.source, v.created_at) for v in before
    ]


async def test_an_export_put_back_where_it_came_from_changes_nothing(storage):
    session = await filled(storage)
    assert await put(storage, await exported(storage)) == []
    assert await storage.get_session(GROUP) == session


async def test_a_dry_run_shows_the_changes_and_makes_none(storage):
    session = await filled(storage)
    entry = {"session_id": GROUP, "summary": "new", "recent_context_token_budget": 5000}
    assert await put(storage, document(entry), apply=False) == [
        {
            "session_id": GROUP,
            "display_name": "群\n名",
            "field": "summary",
            "before": "# 摘要",
            "after": "new",
        },
        {
            "session_id": GROUP,
            "display_name": "群\n名",
            "field": "recent_context_token_budget",
            "before": 100_000,
            "after": 5000,
        },
    ]
    assert await storage.get_session(GROUP) == session


async def test_what_a_file_leaves_out_stays_and_the_revision_moves(storage):
    session = await filled(storage)
    await put(storage, document({"session_id": GROUP, "summary": "new"}))
    changed = await storage.get_session(GROUP)
    assert (changed.summary, changed.fixed_memory) == ("new", HOSTILE)
    assert changed.revision != session.revision


async def test_an_imported_summary_is_a_version_of_its_own_and_covers_nothing(storage):
    await filled(storage)
    await put(storage, document({"session_id": GROUP, "summary": "new"}))
    newest = (await storage.list_versions(GROUP, 1, 0))[0][0]
    assert (newest.source, newest.text, newest.created_at) == ("import", "new", 500)
    assert await storage.latest_coverage(GROUP) is None


async def test_an_imported_summary_covers_what_its_file_says(storage):
    await filled(storage)
    version = {
        "created_at": 1,
        "source": "model",
        "model": "m",
        "conversation_id": "c",
        "covered": 4,
        "prefix_hash": "a" * 64,
        "text": "new",
    }
    await put(storage, document({"session_id": GROUP, "summary": "new", "versions": [version]}))
    coverage = await storage.latest_coverage(GROUP)
    assert (coverage.covered, coverage.prefix_hash, coverage.model) == (4, "a" * 64, "m")


async def test_a_new_session_gets_the_defaults_for_what_the_file_leaves_out(storage):
    await storage.apply_to_all({"summary_target_tokens": 900}, 1)
    changes = await put(storage, document({"session_id": "tg:FriendMessage:1"}))
    session = await storage.get_session("tg:FriendMessage:1")
    assert (session.summary_target_tokens, session.platform) == (900, "tg")
    assert all(change["before"] is None for change in changes)
    assert await storage.all_versions(session.session_id) == []


async def test_a_failure_in_the_middle_of_an_import_changes_nothing(storage, monkeypatch):
    session = await filled(storage)
    async with storage.database.reading() as db:
        await db.execute(
            "CREATE TRIGGER broken BEFORE INSERT ON summary_versions"
            " BEGIN SELECT RAISE(ABORT, 'disk'); END"
        )
    entries = [{"session_id": "new"}, {"session_id": GROUP, "summary": "new"}]
    with pytest.raises(Exception, match="disk"):
        await put(storage, document(*entries))
    assert await storage.get_session(GROUP) == session
    assert await storage.get_session("new") is None


@pytest.mark.parametrize(
    ("content", "field"),
    [
        (b"\xff\xfe", "file"),
        (b"not json", "file"),
        (b"[]", "file"),
        (b"[" * 200_000, "file"),
        (b"{}", "format"),
        (document(format="other"), "format"),
        (document(version=2), "version"),
        (document(version=True), "version"),
        (document(version="1"), "version"),
        (document(more=1), "more"),
        (document(sessions={}), "sessions"),
        (document({}), "sessions.0.session_id"),
        (document({"session_id": 5}), "sessions.0.session_id"),
        (document({"session_id": "a"}, {"session_id": "a"}), "sessions.1.session_id"),
        (document({"session_id": "a", "fixed_memory": ["x"]}), "sessions.0.fixed_memory"),
        (document({"session_id": "a", "summary": "x" * 200_001}), "sessions.0.summary"),
        (document({"session_id": "a", "options": {}}), "sessions.0.options"),
        (
            document({"session_id": "a", "recent_context_token_budget": "5000"}),
            "sessions.0.recent_context_token_budget",
        ),
        (
            document({"session_id": "a", "summary_target_tokens": 1}),
            "sessions.0.summary_target_tokens",
        ),
        (
            document({"session_id": "a", "versions": [{"text": "x"}]}),
            "sessions.0.versions.0.created_at",
        ),
        (
            document({"session_id": "a", "last_seen_at": 10**400}),
            "sessions.0.last_seen_at",
        ),
        (b'{"format": 1e999, "version": NaN}', "format"),
    ],
)
def test_a_file_that_is_no_export_is_refused_by_its_field(content, field):
    assert field_of_refusal(content) == field


async def test_lone_surrogates_in_a_file_become_replacement_characters(storage):
    content = document({"session_id": "a", "display_name": "\ud800", "summary": "x\udfff"})
    await put(storage, content)
    session = await storage.get_session("a")
    assert (session.display_name, session.summary) == ("\ufffd", "x\ufffd")


async def test_a_history_with_lone_surrogates_can_be_exported_and_read_again(storage):
    await filled(storage)
    content = await exported(storage, [{"role": "user", "content": "\ud83d"}])
    assert parse(content)[0].conversation["messages"] == [{"role": "user", "content": "\ud83d"}]


async def test_a_document_for_people_holds_memory_summary_and_messages(storage):
    session = await filled(storage)
    text = markdown_session(session, [{"role": "user", "content": "你好\ud800"}])
    assert text.startswith("# 群 名\n")
    assert HOSTILE in text and "# 摘要" in text and "**[1] user**\n\n你好\ufffd" in text


async def test_an_import_takes_time_that_grows_with_its_sessions(storage):
    spent = {10_000 // FACTOR: [], 10_000: []}
    for attempt in range(3):
        for count, seconds in spent.items():
            entries = [
                {"session_id": f"qq:GroupMessage:{n}", "summary": f"{n} of {count}, {attempt}"}
                for n in range(count)
            ]
            content, began = document(*entries), time.perf_counter()
            assert len(await put(storage, content)) >= count
            seconds.append(time.perf_counter() - began)
    small, large = map(min, spent.values())
    assert large / small < IN_LINE
    assert (await storage.list_sessions("", "", "", 1, 0))[1] == 10_000
