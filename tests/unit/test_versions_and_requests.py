"""Versions come back whole, and requests are recorded without touching a reply."""

import asyncio
import sqlite3
import time
from datetime import date
from types import SimpleNamespace

import pytest
from astrbot_plugin_context_manager.context_logic import Projection, Report
from astrbot_plugin_context_manager.errors import InvalidChange, StaleRevision, UnknownSession
from astrbot_plugin_context_manager.host_answers import reported_usage
from astrbot_plugin_context_manager.request_log import (
    KEPT,
    KEPT_DAYS,
    RequestLog,
    RequestRecord,
    Usage,
)
from astrbot_plugin_context_manager.request_record import Measurements, record_of
from astrbot_plugin_context_manager.settings import Settings
from astrbot_plugin_context_manager.storage import Storage
from astrbot_plugin_context_manager.tokens import TokenCounter

from .messages import assistant, call, tool, user

GROUP = "qq:GroupMessage:100"


@pytest.fixture
async def storage(tmp_path):
    opened = await Storage.open(tmp_path / "context_manager.db", Settings())
    await opened.see_session(GROUP, "群", "qq", 100)
    yield opened
    await opened.close()


async def summarise(storage, text, covered, conversation_id="c"):
    base = (await storage.get_session(GROUP)).summary
    version, _ = await storage.commit_summary(
        GROUP,
        text,
        base_summary=base,
        model=f"model-{covered}",
        conversation_id=conversation_id,
        covered=covered,
        prefix_hash=f"hash-{covered}",
        tokens=7,
        source="model",
        now=200,
    )
    return version


async def write(storage, text):
    return await storage.update_session(GROUP, {"summary": text}, None, 300)


async def restore(storage, version_id):
    revision = (await storage.get_session(GROUP)).revision
    return await storage.restore_version(GROUP, version_id, revision, 400)


def record(number=0, **more):
    values = {
        "session_id": GROUP,
        "time": number,
        "model": "m",
        "sections": {"system": 3, "window": number},
        "estimated": 3 + number,
        "prompt_tokens": None,
        "cached_tokens": None,
        "output_tokens": None,
        "first_turn": 0,
        "left_out_turns": 0,
        "milliseconds": 5,
    }
    return RequestRecord(**values | more)


async def test_versions_come_newest_first_by_pages_with_their_total(storage):
    for number in range(5):
        await write(storage, f"text {number}")
    page, total = await storage.list_versions(GROUP, 2, 1)
    assert ([v.text for v in page], total) == (["text 3", "text 2"], 5)


async def test_a_restored_version_becomes_the_summary_and_a_version_of_the_user(storage):
    old = await summarise(storage, "old", 4)
    await write(storage, "mine")
    session = await restore(storage, old.id)
    assert session.summary == "old"
    newest = (await storage.list_versions(GROUP, 1, 0))[0][0]
    assert (newest.source, newest.text, newest.tokens) == ("user", "old", 7)


async def test_a_restored_version_covers_what_it_covered_then(storage):
    old = await summarise(storage, "old", 4)
    await summarise(storage, "new", 9)
    await restore(storage, old.id)
    coverage = await storage.latest_coverage(GROUP)
    assert (coverage.covered, coverage.model, coverage.prefix_hash) == (4, "model-4", "hash-4")


async def test_a_restored_edit_covers_what_the_text_it_refined_covered(storage):
    await summarise(storage, "old", 4)
    await write(storage, "old, refined")
    edited = (await storage.list_versions(GROUP, 1, 0))[0][0]
    await summarise(storage, "new", 9)
    await restore(storage, edited.id)
    assert (await storage.latest_coverage(GROUP)).covered == 4


async def test_a_text_written_before_any_compression_covers_nothing_once_restored(storage):
    await write(storage, "by hand")
    written = (await storage.list_versions(GROUP, 1, 0))[0][0]
    await summarise(storage, "new", 9)
    await restore(storage, written.id)
    assert await storage.latest_coverage(GROUP) is None


async def test_a_stale_revision_restores_nothing(storage):
    old = await summarise(storage, "old", 4)
    stale = (await storage.get_session(GROUP)).revision
    await write(storage, "mine")
    with pytest.raises(StaleRevision):
        await storage.restore_version(GROUP, old.id, stale, 400)
    assert (await storage.get_session(GROUP)).summary == "mine"


async def test_a_version_of_another_session_cannot_be_restored(storage):
    old = await summarise(storage, "old", 4)
    other = await storage.see_session("qq:GroupMessage:2", "", "qq", 1)
    with pytest.raises(InvalidChange):
        await storage.restore_version(other.session_id, old.id, other.revision, 1)
    with pytest.raises(UnknownSession):
        await storage.restore_version("nobody", old.id, "1", 1)


async def test_a_database_of_the_first_schema_keeps_its_rows(tmp_path, storage):
    from astrbot_plugin_context_manager.migrations import MIGRATIONS

    path = tmp_path / "first.db"
    with sqlite3.connect(path) as db:
        db.executescript(MIGRATIONS[0] + "PRAGMA user_version = 1;")
        db.execute("INSERT INTO sessions (session_id, summary) VALUES ('s', 'kept')")
    opened = await Storage.open(path, Settings())
    assert (await opened.get_session("s")).summary == "kept"
    await RequestLog(opened.database).add(record(session_id="s"))
    await opened.close()


async def test_requests_come_back_newest_first_with_unreported_usage_as_none(storage):
    log = RequestLog(storage.database)
    await log.add(record(1))
    await log.add(record(2, prompt_tokens=90, cached_tokens=64, output_tokens=8))
    newest, older = await log.newest(GROUP, 10)
    assert newest == record(2, prompt_tokens=90, cached_tokens=64, output_tokens=8)
    assert older.prompt_tokens is None and older.sections == {"system": 3, "window": 1}


async def test_only_the_newest_records_of_each_session_are_kept(storage):
    log = RequestLog(storage.database)
    await log.add(record(0, session_id="other"))
    for number in range(KEPT + 3):
        await log.add(record(number))
    kept = await log.newest(GROUP, 1000)
    assert [r.time for r in kept] == list(range(KEPT + 2, 2, -1))
    assert len(await log.newest("other")) == 1


async def test_a_failed_write_of_a_record_reaches_nobody(storage, caplog):
    log = RequestLog(storage.database)
    async with storage.database.reading() as db:
        await db.execute("DROP TABLE requests")
    log.write_later(record)
    await log.settle()
    assert not [r for r in caplog.records if r.exc_info]


async def test_a_record_that_comes_after_the_close_is_dropped_in_silence(tmp_path, caplog):
    opened = await Storage.open(tmp_path / "closed.db", Settings())
    log = RequestLog(opened.database)
    await opened.close()
    log.write_later(record)
    await log.settle()
    assert not caplog.records


async def test_recording_returns_before_anything_is_written(storage):
    log = RequestLog(storage.database)
    async with storage.database.writing():
        # Another write holds the database: the request goes on all the same.
        log.write_later(record)
        await asyncio.sleep(0)
    await log.settle()
    assert len(await log.newest(GROUP)) == 1


def projected(before, current):
    report = Report(budget=100, sections={"window": 10, "tools": 2}, first_turn=3, total_turns=5)
    return Projection([*before, current], before, current, before, None, report)


def test_what_tools_added_counts_in_the_estimate_and_the_reply_does_not():
    before, current = [user(), assistant()], user("now")
    steps = [assistant("", tool_calls=call("1")), tool("1", "found it")]
    tokens = TokenCounter()
    final = [*before, current, *steps, assistant("reply")]
    made = record_of(
        GROUP, projected(before, current), Measurements(7), final, tokens.count_message
    )
    assert made.sections["tool_steps"] == tokens.count_messages(steps)
    assert made.estimated == 12 + tokens.count_messages(steps)
    assert (made.first_turn, made.left_out_turns, made.time) == (3, 3, 7)


def test_a_request_without_an_answer_has_no_usage_and_no_tool_steps():
    before, current = [user(), assistant()], user("now")
    final = [*before, current]
    made = record_of(
        GROUP, projected(before, current), Measurements(7), final, TokenCounter().count_message
    )
    assert (made.prompt_tokens, made.sections) == (None, {"window": 10, "tools": 2})


def answer(fresh, cached, output):
    return SimpleNamespace(
        usage=SimpleNamespace(input_other=fresh, input_cached=cached, output=output)
    )


@pytest.mark.parametrize(
    "counts",
    [
        (0, 0, 0),
        (0, 0, 12),
        (None, 0, 5),
        (-500, 0, 5),
        (100, -1, 5),
        (100, 0, -5),
        (100.0, 0, 5),
        ("100", 0, 5),
        (True, 0, 5),
        (10**9, 0, 5),
        (100, 0, 10**9),
    ],
)
def test_usage_that_no_request_can_have_is_not_reported(counts):
    assert reported_usage(answer(*counts)) is None
    assert reported_usage(SimpleNamespace(usage=None)) is None


def test_no_more_is_cached_than_there_was():
    assert reported_usage(answer(-50, 150, 5)) == Usage(100, 100, 5)
    assert reported_usage(answer(20, 80, 0)) == Usage(100, 80, 0)


def test_reported_usage_is_taken_over():
    before, current = [], user("now")
    measured = Measurements(7, "m", Usage(90, 64, 8), 1200)
    made = record_of(
        GROUP, projected(before, current), measured, [current, assistant()], TokenCounter()
    )
    assert (made.prompt_tokens, made.cached_tokens, made.output_tokens) == (90, 64, 8)
    assert (made.model, made.milliseconds) == ("m", 1200)


async def test_requests_are_summed_by_day_and_the_sums_outlive_the_records(storage):
    log, day = RequestLog(storage.database), 86_400
    for number in range(KEPT + 10):
        await log.add(record(number, time=number % 2 * day, prompt_tokens=100, cached_tokens=60))
    await log.add(record(0, time=day, prompt_tokens=None, cached_tokens=None))
    newest, oldest = await log.days(GROUP)
    assert newest.day > oldest.day
    assert (newest.requests, newest.reported) == (KEPT // 2 + 6, KEPT // 2 + 5)
    assert (oldest.prompt_tokens, oldest.cached_tokens) == (105 * 100, 105 * 60)
    assert await log.days("someone else") == []


@pytest.fixture
def zone(monkeypatch):
    """Moves the server into a time zone."""

    def move(name):
        monkeypatch.setenv("TZ", name)
        time.tzset()

    yield move
    monkeypatch.undo()
    time.tzset()


async def test_a_request_belongs_to_the_servers_day_before_and_after_midnight(storage, zone):
    zone("Asia/Shanghai")
    midnight = int(time.mktime((2026, 3, 2, 0, 0, 0, 0, 0, -1)))
    for at in (midnight - 1, midnight, midnight + 1):
        # A log of its own each: as after a restart.
        await RequestLog(storage.database).add(record(0, time=at, prompt_tokens=10))
    days = await RequestLog(storage.database).days(GROUP)
    assert [(d.day, d.requests, d.prompt_tokens) for d in days] == [
        ("2026-03-02", 2, 20),
        ("2026-03-01", 1, 10),
    ]


async def test_days_beyond_the_bound_are_dropped(storage):
    log = RequestLog(storage.database)
    for number in range(KEPT_DAYS + 3):
        await log.add(record(number, time=number * 86_400))
    days = await log.days(GROUP, 1000)
    assert len(days) == KEPT_DAYS and days[-1].day == date.fromtimestamp(3 * 86_400).isoformat()
