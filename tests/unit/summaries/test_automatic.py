"""Automatic compression: only where wanted, never in the way, and it stops by itself."""

import asyncio
from dataclasses import replace

import pytest
from astrbot_plugin_context_manager.auto_compression import AutoCompression, due
from astrbot_plugin_context_manager.host import ChatProvider
from astrbot_plugin_context_manager.request_flow import SavedRequest
from astrbot_plugin_context_manager.texts import LANGUAGES, Texts

from .scripted_host import SESSION, finished, lines_about, running, talk

REQUEST = SavedRequest(SESSION, f"conv-{SESSION}", 0, 100, 1000, None)


class Clock:
    """A clock that a test sets."""

    def __init__(self):
        self.now = 1000

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
async def automatic(storage, host, make, clock):
    """Automatic compression of one session that has opted in."""
    options = {"auto_compress": True, "auto_compress_min_messages": 8}
    await storage.update_session(SESSION, options, None, 1)
    made = automatic_over(storage, host, make(clock=clock), clock)
    yield made
    await made.close()


def automatic_over(storage, host, compressor, clock):
    made = AutoCompression(
        storage,
        compressor,
        Texts("zh-CN"),
        load_history=host.load_history,
        say=host.send_text,
        clock=clock,
    )
    made.compressor = compressor
    return made


async def replied(automatic, host, messages, window_start, **more):
    """A reply after which so many messages are stored and before the window."""
    host.history[SESSION] = messages
    automatic.after_save(replace(REQUEST, window_start=window_start, **more))
    await automatic.settle()
    return automatic.compressor.job(SESSION)


# When


async def test_seven_messages_outside_the_window_call_no_model_and_eight_call_one(automatic, host):
    await replied(automatic, host, talk(20), 7)
    assert host.prompts == []
    job = await replied(automatic, host, talk(20), 8)
    assert len(host.prompts) == 1 and job.state == "done"


async def test_a_job_covers_what_is_outside_the_window_and_no_more(automatic, host, storage):
    job = await replied(automatic, host, talk(20), 8)
    assert job.covered == 8 and "<m7>" in host.prompts[0][1] and "<m8>" not in host.prompts[0][1]
    [version] = await storage.all_versions(SESSION)
    assert (version.source, version.covered) == ("auto", 8)


@pytest.mark.parametrize(("window_start", "calls"), [(11, 0), (12, 1)])
async def test_pinned_turns_have_not_left_the_window(automatic, host, window_start, calls):
    job = await replied(automatic, host, talk(20), window_start, pinned=4)
    assert len(host.prompts) == calls
    assert job.covered == (12 if calls else None)
    await replied(automatic, host, talk(30), window_start + 8, pinned=4)
    assert len(host.prompts) == calls + 1


async def test_only_what_is_not_covered_yet_counts(automatic, host):
    await replied(automatic, host, talk(20), 8)
    await replied(automatic, host, talk(30), 15)
    assert len(host.prompts) == 1
    job = await replied(automatic, host, talk(30), 16)
    assert job.covered == 16 and "<m7>" not in host.prompts[1][1] and "<m8>" in host.prompts[1][1]


async def test_a_session_that_has_not_opted_in_never_calls_a_model(automatic, host, storage):
    await storage.update_session(SESSION, {"auto_compress": False}, None, 2)
    await replied(automatic, host, talk(200), 180, used=5000)
    assert host.prompts == []


async def test_a_session_without_a_row_calls_no_model(automatic, host):
    other = replace(REQUEST, session_id="nobody", window_start=50)
    automatic.after_save(other)
    await automatic.settle()
    assert host.prompts == []


async def test_another_conversation_than_the_requests_calls_no_model(automatic, host):
    await replied(automatic, host, talk(20), 12, conversation_id="an older one")
    assert host.prompts == []


async def test_an_edited_history_counts_from_its_beginning(automatic, host):
    await replied(automatic, host, talk(20), 8)
    edited = [{"role": "user", "content": "edited"}, *talk(20)[1:]]
    job = await replied(automatic, host, edited, 8)
    assert len(host.prompts) == 2 and job.covered == 8


async def test_a_chat_that_fits_is_not_even_read(automatic, host, monkeypatch):
    async def read(session_id):
        raise AssertionError("the history was read")

    monkeypatch.setattr(automatic, "_load_history", read)
    await replied(automatic, host, talk(20), 7, used=10_000)


async def options(storage, **changes):
    return await storage.update_session(SESSION, changes, None, 3)


@pytest.mark.parametrize(
    ("window_start", "used", "before_tail", "expected"),
    [
        (0, 849, 14, None),
        (0, 850, 14, 14),
        (9, 100, 14, 14),  # outside the window: all outside the tail comes along
        (16, 100, 14, 16),
        (0, 1000, 6, None),  # only six are outside the tail
        (0, 1000, 7, None),
        (0, 1000, 8, 8),
        (0, 1000, 30, 20),  # the history was cleared meanwhile
    ],
)
async def test_with_a_tail_a_full_request_starts_a_job_too(
    automatic, storage, window_start, used, before_tail, expected
):
    session = await options(storage, tail_tokens=60)
    request = replace(REQUEST, window_start=window_start, used=used, before_tail=before_tail)
    found = due(session, request, 20, 0)
    assert (found.until if found else None) == expected


async def test_without_a_tail_a_full_request_starts_nothing(automatic, storage):
    session = await options(storage, tail_tokens=0)
    assert due(session, replace(REQUEST, used=1000), 20, 0) is None


# The way


async def test_no_reply_waits_for_the_model(automatic, host):
    host.gate.clear()
    host.history[SESSION] = talk(20)
    automatic.after_save(replace(REQUEST, window_start=10))
    await host.asked.wait()
    host.gate.set()
    await automatic.settle()
    assert automatic.compressor.job(SESSION).state == "done"


async def test_twenty_triggers_of_two_sessions_are_one_job_each_without_crossing(
    automatic, storage, host
):
    other = "qq:GroupMessage:2"
    await storage.see_session(other, "b", "qq", 1)
    await storage.update_session(other, {"auto_compress": True}, None, 1)
    host.history = {SESSION: talk(20), other: talk(20, start=500)}
    for _ in range(20):
        automatic.after_save(replace(REQUEST, window_start=10))
        automatic.after_save(
            replace(REQUEST, session_id=other, conversation_id=f"conv-{other}", window_start=10)
        )
        await asyncio.sleep(0)
    await automatic.settle()
    prompts = dict(host.prompts)
    assert len(host.prompts) == 2 and prompts.keys() == {SESSION, other}
    assert "<m500>" not in prompts[SESSION] and "<m0>" not in prompts[other]


async def test_a_job_that_somebody_asked_for_is_left_alone(automatic, host, storage):
    host.history[SESSION] = talk(20)
    async with running(automatic.compressor, host) as job:
        automatic.after_save(replace(REQUEST, window_start=10))
        await automatic.settle()
    assert len(host.prompts) == 1 and not job.automatic


async def test_the_model_of_the_request_is_asked(automatic, host):
    await replied(automatic, host, talk(20), 10, provider=ChatProvider("picked", "m", 0))
    assert host.sent[0][0] == "picked"


async def test_an_edit_during_an_automatic_job_wins(automatic, host, storage):
    host.gate.clear()
    host.history[SESSION] = talk(20)
    automatic.after_save(replace(REQUEST, window_start=10))
    await host.asked.wait()
    await storage.update_session(SESSION, {"summary": "mine"}, None, 5)
    host.gate.set()
    await automatic.settle()
    assert automatic.compressor.job(SESSION).state == "conflict"
    assert (await storage.get_session(SESSION)).summary == "mine"
    assert await storage.latest_coverage(SESSION) is None


async def test_closing_ends_what_runs_and_starts_nothing_more(automatic, host):
    host.gate.clear()
    host.history[SESSION] = talk(20)
    automatic.after_save(replace(REQUEST, window_start=10))
    await host.asked.wait()
    await automatic.close()
    await automatic.compressor.close()
    automatic.after_save(replace(REQUEST, window_start=10))
    assert automatic.compressor.job(SESSION).state == "cancelled"
    assert len(host.prompts) == 1


async def test_a_broken_database_is_no_error_of_the_chat(automatic, host, storage, caplog):
    await storage.close()
    await replied(automatic, host, talk(20), 10)
    assert host.prompts == [] and lines_about(caplog, SESSION) == []


async def test_an_unexpected_error_is_one_log_line(automatic, host, caplog, monkeypatch):
    async def broken(session_id):
        raise RuntimeError("boom")

    monkeypatch.setattr(automatic, "_load_history", broken)
    await replied(automatic, host, talk(20), 10)
    assert len(lines_about(caplog, SESSION)) == 1


# Pauses


async def test_after_a_failure_the_next_try_waits_for_the_pause_which_grows(
    automatic, host, storage, clock
):
    host.answers = [RuntimeError("connection error")]
    calls = 0
    for failures, seconds in ((1, 60), (2, 300), (3, 900), (4, 900)):
        job = await replied(automatic, host, talk(20), 10)
        calls += 3
        assert job.state == "failed" and len(host.prompts) == calls
        assert await storage.latest_coverage(SESSION) is None
        pause = await automatic.compressor.log.pause(SESSION)
        assert (pause.failures, pause.until) == (failures, clock.now + seconds)
        chinese, english = (Texts(language).own(pause.reason) for language in LANGUAGES)
        assert f"{seconds // 60} 分钟" in chinese and "connection error" in chinese
        assert f"waits {seconds // 60} minutes" in english and "connection error" in english
        clock.now += seconds - 1
        await replied(automatic, host, talk(20), 10)
        assert len(host.prompts) == calls
        clock.now += 1
    host.answers = ["## ok"]
    assert (await replied(automatic, host, talk(20), 10)).state == "done"
    assert await automatic.compressor.log.pause(SESSION) is None


async def test_a_pause_survives_a_restart(automatic, host, storage, make, clock):
    host.answers = [RuntimeError("connection error")]
    await replied(automatic, host, talk(20), 10)
    restarted = automatic_over(storage, host, make(clock=clock), clock)
    await replied(restarted, host, talk(20), 10)
    assert len(host.prompts) == 3
    clock.now += 60
    await replied(restarted, host, talk(20), 10)
    assert len(host.prompts) == 6
    await restarted.close()


async def test_a_summary_that_somebody_asked_for_ends_the_pause(automatic, host):
    host.answers = [*[RuntimeError("connection error")] * 3, "## ok"]
    await replied(automatic, host, talk(20), 10)
    assert (await finished(automatic.compressor)).state == "done"
    assert await automatic.compressor.log.pause(SESSION) is None


async def test_a_job_that_saves_nothing_stops_and_waits_for_twice_as_many_messages(
    automatic, host, storage, caplog
):
    host.answers = ["## 事实\n- " + "事" * 900]
    job = await replied(automatic, host, talk(20, size=60), 10)
    assert job.state == "failed" and "没有节省" in job.message
    assert (await storage.get_session(SESSION)).summary == ""
    assert await storage.latest_coverage(SESSION) is None
    assert any("saved nothing" in r.getMessage() for r in lines_about(caplog, SESSION))
    await replied(automatic, host, talk(40, size=60), 19)
    assert len(host.prompts) == 1
    host.answers = ["## short"]
    assert (await replied(automatic, host, talk(40, size=60), 20)).state == "done"


# What is said


async def test_nothing_is_said_in_the_chat_unless_it_is_wanted(automatic, host):
    await replied(automatic, host, talk(20), 10)
    assert host.said == []


async def test_the_chat_is_told_before_and_after(automatic, host, storage):
    await storage.update_session(SESSION, {"auto_compress_notice": True}, None, 2)
    await replied(automatic, host, talk(20), 10)
    (_, before), (_, after) = host.said
    assert "10 条消息" in before and "压缩完成" in after


async def test_the_chat_is_told_about_a_failure_and_the_pause(automatic, host, storage):
    await storage.update_session(SESSION, {"auto_compress_notice": True}, None, 2)
    host.answers = [RuntimeError("connection error")]
    await replied(automatic, host, talk(20), 10)
    assert "失败 1 次" in host.said[1][1] and "1 分钟" in host.said[1][1]


async def test_costs_of_automatic_jobs_are_recorded_too(automatic, host):
    await replied(automatic, host, talk(20), 10)
    assert (await automatic.compressor.log.costs(SESSION)).calls == 1
