"""A job either stores a summary or changes nothing and says why."""

import asyncio
import contextlib
import sqlite3

import pytest
from astrbot_plugin_context_manager import storage as storage_module
from astrbot_plugin_context_manager.host import ChatProvider, LLMAnswer
from astrbot_plugin_context_manager.settings import Settings
from astrbot_plugin_context_manager.watermark import prefix_hash

from .scripted_host import HISTORY, SESSION, finished, lines_about, running, talk


async def test_a_summary_is_stored_with_what_it_covers_and_what_it_cost(compressor, storage, host):
    job = await finished(compressor)
    assert job.state == "done"
    assert (job.covered, job.usage) == (2, {"input": 120, "output": 30})
    assert job.tokens_before > 0 and job.tokens_after > 0
    assert "广州" in (await storage.get_session(SESSION)).summary
    version = await storage.latest_coverage(SESSION)
    assert (version.id, version.covered, version.model) == (job.version_id, 2, "model-x")
    assert version.prefix_hash == prefix_hash(HISTORY)


async def test_fixed_memory_is_never_sent_to_the_model(compressor, storage, host):
    await storage.update_session(SESSION, {"fixed_memory": "TOP-SECRET"}, None, 1)
    await finished(compressor)
    assert "TOP-SECRET" not in host.sent[0][1]


async def test_the_focus_the_old_summary_and_the_target_are_in_the_prompt(
    compressor, storage, host
):
    changes = {"summary": "old facts", "summary_target_tokens": 777}
    await storage.update_session(SESSION, changes, None, 1)
    await finished(compressor, focus="地址")
    prompt = host.prompts[0][1]
    assert "old facts" in prompt and "777" in prompt and "地址" in prompt


@pytest.mark.parametrize(
    "history",
    [
        [],
        [{"role": "_checkpoint", "content": {"id": "x"}}],
        [{"role": "system", "content": "persona"}, {"role": "user", "content": None}],
        [{"role": "user", "content": "begin", "_no_save": True}],
        [{"role": "user", "content": "<system_reminder>time</system_reminder>"}],
        [{"role": "assistant", "content": [{"type": "think", "think": "hm"}]}],
    ],
)
async def test_a_history_without_a_word_calls_no_model(compressor, storage, host, history):
    host.history[SESSION] = history
    job = await finished(compressor)
    assert job.state == "failed" and "没有可以压缩" in job.message
    assert host.prompts == [] and await storage.latest_coverage(SESSION) is None


async def test_a_session_without_a_conversation_calls_no_model(compressor, host):
    del host.history[SESSION]
    assert "没有可以压缩" in (await finished(compressor)).message


async def test_a_session_nobody_knows_fails_without_a_row_being_made(compressor, storage, host):
    job = await finished(compressor, "qq:GroupMessage:unknown")
    assert job.state == "failed" and job.message
    assert await storage.get_session("qq:GroupMessage:unknown") is None


async def test_what_is_refused_without_the_model_is_known_once_prepared(compressor, host):
    host.history[SESSION] = []
    job = compressor.start(SESSION)
    await job.prepared()
    assert job.state == "failed"


async def test_a_prepared_job_is_running_while_its_model_thinks(compressor, host):
    async with running(compressor, host) as job:
        await job.prepared()
        assert job.state == "running"


async def test_a_session_without_a_model_says_so(compressor, host):
    host.provider = None
    job = await finished(compressor)
    assert job.state == "failed" and "对话模型" in job.message


async def test_a_window_too_small_for_the_prompt_is_refused_with_both_numbers(compressor, host):
    host.provider = ChatProvider("p", "small", 1000)
    job = await finished(compressor)
    assert job.state == "failed" and "没有调用模型" in job.message and "800" in job.message
    assert host.prompts == []


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "  \n ",
        "<think>I should</think>",
        "<think>never closed",
        "There is nothing to summarize.",
        "没有可以总结的内容。",
        "抱歉，我无法完成这个请求。",
        LLMAnswer("rate limit", "err", "", None, None, None),
        LLMAnswer("", "assistant", "only reasoning", 5, 5, "stop"),
        LLMAnswer("## half a", "assistant", "", 5, 5, "length"),
        LLMAnswer("## half", "assistant", "", 5, 5, "content_filter"),
        LLMAnswer(None, "assistant", "", None, None, None),
        LLMAnswer("", "tool", "", 5, 5, "tool_calls"),
        "Error: 429 too many requests",
        "```\n```",
        RuntimeError("connection error"),
        TimeoutError(),
        KeyError("choices"),
    ],
)
async def test_an_answer_that_is_no_summary_changes_nothing(compressor, storage, host, answer):
    await storage.update_session(SESSION, {"summary": "old"}, None, 1)
    host.answers = [answer]
    job = await finished(compressor)
    assert job.state == "failed" and job.message
    assert job.version_id is None
    assert (await storage.get_session(SESSION)).summary == "old"
    assert await storage.latest_coverage(SESSION) is None
    assert (job.done, job.total, job.covered) == (0, 1, None)


async def test_a_failed_call_shows_its_error_on_one_line_and_without_keys(compressor, host, caplog):
    host.answers = [
        RuntimeError("401\nbad key sk-abcdef1234567 at https://x?key=AIzaSy12345678\ud800")
    ]
    job = await finished(compressor)
    assert "RuntimeError: 401 bad key" in job.message
    assert "abcdef" not in job.message and "AIza" not in job.message
    assert "\n" not in job.message and "\ud800" not in job.message
    [line] = lines_about(caplog, SESSION)
    assert "AIza" not in line.getMessage()


async def test_an_error_without_a_text_is_shown_by_its_name(compressor, host):
    host.answers = [TimeoutError()]
    assert "TimeoutError" in (await finished(compressor)).message


async def test_an_answer_that_is_refused_still_reports_what_it_cost(compressor, host):
    host.answers = [LLMAnswer("", "assistant", "", 100, 2, "stop")]
    job = await finished(compressor)
    assert (job.calls, job.usage) == (3, {"input": 300, "output": 6})


async def test_usage_that_is_not_reported_is_unknown(compressor, host):
    host.answers = [LLMAnswer("## ok", "assistant", "", None, None, None)]
    job = await finished(compressor)
    assert job.state == "done" and job.usage is None


async def test_a_model_that_never_answers_is_given_up(make, host):
    host.gate.clear()
    compressor = make(model_seconds=0.01)
    job = await finished(compressor)
    assert job.state == "failed" and "TimeoutError" in job.message


async def test_28_failures_in_a_row_leave_the_old_summary_and_the_29th_try_works(
    compressor, storage, host
):
    await storage.update_session(SESSION, {"summary": "old"}, None, 1)
    host.answers = [RuntimeError("connection error")] * 28 * 3 + ["## ok"]
    for _ in range(28):
        assert (await finished(compressor)).state == "failed"
        assert (await storage.get_session(SESSION)).summary == "old"
    assert (await finished(compressor)).state == "done"


async def test_a_second_start_gets_the_running_job(compressor, host):
    host.gate.clear()
    first = compressor.start(SESSION)
    await host.asked.wait()
    assert compressor.start(SESSION) is first
    host.gate.set()
    await first.wait()
    assert len(host.prompts) == 1


async def test_two_sessions_compress_at_once_without_a_word_of_each_other(
    compressor, storage, host
):
    other = "qq:GroupMessage:2"
    await storage.see_session(other, "b", "qq", 1)
    host.history[other] = [{"role": "user", "content": "BBB secret"}]
    host.gate.clear()
    jobs = [compressor.start(SESSION), compressor.start(other)]
    host.gate.set()
    for job in jobs:
        await job.wait()
    prompts = dict(host.prompts)
    assert "BBB" not in prompts[SESSION] and "广州" not in prompts[other]


async def test_messages_that_arrive_during_a_job_are_not_counted(compressor, storage, host):
    host.gate.clear()
    job = compressor.start(SESSION)
    await host.asked.wait()
    host.history[SESSION].append({"role": "user", "content": "late"})
    host.gate.set()
    await job.wait()
    assert job.covered == 2
    assert (await storage.latest_coverage(SESSION)).prefix_hash == prefix_hash(HISTORY)


async def test_a_human_edit_during_a_job_stands_and_the_result_is_a_conflicting_version(
    compressor, storage, host
):
    host.gate.clear()
    job = compressor.start(SESSION)
    await host.asked.wait()
    await storage.update_session(SESSION, {"summary": "mine"}, None, 2)
    host.gate.set()
    await job.wait()
    assert job.state == "conflict" and job.version_id
    assert (await storage.get_session(SESSION)).summary == "mine"


async def test_a_cancelled_job_changes_nothing(compressor, storage, host):
    host.gate.clear()
    compressor.start(SESSION)
    await host.asked.wait()
    job = await compressor.cancel(SESSION)
    assert job.state == "cancelled" and "取消" in job.message
    assert (await storage.get_session(SESSION)).summary == ""


async def test_closing_ends_running_jobs_and_says_why(compressor, host):
    host.gate.clear()
    job = compressor.start(SESSION)
    await host.asked.wait()
    await compressor.close()
    assert job.state == "cancelled" and "停用或重载" in job.message


async def test_a_broken_template_of_the_user_fails_clearly(compressor, storage, host):
    await storage.update_session(SESSION, {"compress_prompt": "{{ nothing.here"}, None, 1)
    job = await finished(compressor)
    assert job.state == "failed" and "模板" in job.message
    assert host.prompts == []


async def test_a_template_of_the_user_replaces_the_default_one(compressor, storage, host):
    await storage.update_session(SESSION, {"compress_prompt": "MINE {{ messages }}"}, None, 1)
    await finished(compressor)
    assert host.prompts[0][1].startswith("MINE [1] user:")


async def test_a_template_of_the_user_that_forgets_the_old_summary_still_gets_it(
    compressor, storage, host
):
    changes = {"compress_prompt": "一句话总结", "summary": "old facts"}
    await storage.update_session(SESSION, changes, None, 1)
    await finished(compressor)
    assert "old facts" in host.prompts[0][1] and "天河路12号" in host.prompts[0][1]


async def test_the_old_summary_is_fed_back_bare_and_replaced_over_five_passes(
    compressor, storage, host
):
    host.answers = ["===== AI Summary =====\n## 事实\n- 小明"]
    sizes = set()
    for number in range(5):
        host.history[SESSION] += talk(4, start=4 * number)
        assert (await finished(compressor)).state == "done"
        assert "=====" not in host.prompts[number][1]
        sizes.add(len((await storage.get_session(SESSION)).summary))
    assert len(sizes) == 1


async def test_eight_early_facts_are_in_every_prompt_of_three_passes(compressor, storage, host):
    facts = [f"事实{n}：{name}的电话是1380000000{n}" for n, name in enumerate("甲乙丙丁戊己庚辛")]
    host.answers = ["## 事实\n" + "\n".join(f"- {fact}" for fact in facts)]
    host.history[SESSION] = [{"role": "user", "content": fact} for fact in facts]
    await finished(compressor)
    for start in (0, 48):
        host.history[SESSION] = [
            {"role": "user", "content": f"闲聊{n}"} for n in range(start, start + 48)
        ]
        await finished(compressor)
        assert all(fact in host.prompts[-1][1] for fact in facts)


async def test_the_model_reads_no_media_reminders_reasoning_or_whole_tool_output(compressor, host):
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUFB" * 1000}}
    reminder = {"type": "text", "text": "<system_reminder>13:37</system_reminder>"}
    call = {"id": "1", "type": "function", "function": {"name": "dump", "arguments": "{}"}}
    host.history[SESSION] = [
        {"role": "user", "content": [{"type": "text", "text": "看"}, picture, reminder]},
        {"role": "assistant", "content": [{"type": "think", "think": "HM"}], "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "HEAD" + "y" * 300_000 + "TAIL"},
        {"role": "assistant", "content": "<think>HM</think>好了"},
    ]
    await finished(compressor)
    prompt = host.prompts[0][1]
    for absent in ("QUFB", "13:37", "HM", "y" * 5000):
        assert absent not in prompt
    for present in ("[图片]", "dump", "HEAD", "TAIL", "好了"):
        assert present in prompt


async def test_a_history_that_just_fits_is_sent(compressor, host):
    host.provider = ChatProvider("p", "big", 8000)
    assert (await finished(compressor)).state == "done"


async def test_the_session_s_own_model_is_asked(compressor, storage, host):
    host.provider = ChatProvider("own-provider", "own-model", 0)
    await finished(compressor)
    assert host.sent[0][0] == "own-provider"
    assert (await storage.latest_coverage(SESSION)).model == "own-model"


async def test_a_second_start_after_the_end_is_a_new_job(compressor, host):
    first = await finished(compressor)
    second = await finished(compressor, rebuild=True)
    assert second is not first and len(host.prompts) == 2
    assert compressor.job(SESSION) is second


async def test_a_session_that_was_never_compressed_is_idle(compressor):
    assert compressor.job("x").as_dict() == {
        "state": "idle",
        "automatic": False,
        "progress": {"done": 0, "total": 0},
        "message": "",
        "version_id": None,
        "covered": None,
        "tokens_before": None,
        "tokens_after": None,
        "usage": None,
    }


async def test_a_caller_that_goes_away_does_not_end_the_job(compressor, host):
    async with running(compressor, host) as job:
        waiter = asyncio.create_task(job.wait())
        await asyncio.sleep(0)
        waiter.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiter
        assert job.state == "running"
    assert job.state == "done"


async def test_one_session_s_failure_does_not_touch_the_other_s_job(compressor, storage, host):
    other = "qq:GroupMessage:2"
    await storage.see_session(other, "b", "qq", 1)
    async with running(compressor, host) as job:
        assert (await finished(compressor, other)).state == "failed"
        assert job.state == "running"
    assert job.state == "done"


async def test_a_session_deleted_during_a_job_fails_it(compressor, storage, host):
    async with running(compressor, host) as job, storage.database.writing() as db:
        await db.execute("DELETE FROM sessions")
    assert job.state == "failed" and "没有这个会话" in job.message


async def test_an_edit_that_was_taken_back_is_no_conflict(compressor, storage, host):
    async with running(compressor, host) as job:
        await storage.update_session(SESSION, {"summary": "mine"}, None, 2)
        await storage.update_session(SESSION, {"summary": ""}, None, 3)
    assert job.state == "done"


async def test_an_edit_of_fixed_memory_during_a_job_stands_and_is_no_conflict(
    compressor, storage, host
):
    async with running(compressor, host) as job:
        await storage.update_session(SESSION, {"fixed_memory": "mine"}, None, 2)
    assert job.state == "done"
    session = await storage.get_session(SESSION)
    assert session.fixed_memory == "mine" and "小明" in session.summary


async def test_a_job_cancelled_before_its_first_step_ends_and_the_next_one_starts(compressor, host):
    compressor.start(SESSION)
    job = await compressor.cancel(SESSION)
    assert job.state == "cancelled" and "取消" in job.message
    assert host.prompts == []
    assert (await finished(compressor)).state == "done"


async def test_cancelling_what_does_not_run_changes_nothing(compressor):
    assert (await compressor.cancel(SESSION)).state == "idle"
    job = await finished(compressor)
    assert await compressor.cancel(SESSION) is job and job.state == "done"


class SlowCommit:
    """A storage whose commit waits until it is told to go on."""

    def __init__(self, storage):
        self._storage = storage
        self.database = storage.database
        self.reached, self.gate = asyncio.Event(), asyncio.Event()

    async def get_session(self, session_id):
        return await self._storage.get_session(session_id)

    async def latest_coverage(self, session_id):
        return await self._storage.latest_coverage(session_id)

    async def commit_summary(self, *args, **kwargs):
        self.reached.set()
        await self.gate.wait()
        return await self._storage.commit_summary(*args, **kwargs)


@pytest.mark.parametrize("times", [1, 2])
async def test_a_summary_that_is_being_stored_is_stored_whole(make, storage, times):
    slow = SlowCommit(storage)
    compressor = make(storage=slow)
    job = compressor.start(SESSION)
    await slow.reached.wait()
    ends = [asyncio.create_task(compressor.cancel(SESSION))]
    ends += [asyncio.create_task(compressor.close()) for _ in range(times)]
    for _ in range(5):
        await asyncio.sleep(0)
    slow.gate.set()
    await asyncio.gather(*ends)
    assert job.state == "done"
    assert "小明" in (await storage.get_session(SESSION)).summary


async def test_after_closing_nothing_starts(compressor, host):
    await compressor.close()
    job = compressor.start(SESSION)
    await job.wait()
    await job.prepared()
    assert job.state == "cancelled" and host.prompts == []


async def test_ended_jobs_are_kept_within_the_bounds_of_the_settings(make, host):
    compressor = make(settings=Settings(remembered_sessions=2))
    async with running(compressor, host) as job:
        for number in range(5):
            await finished(compressor, f"chat {number}")
        assert compressor.job(SESSION) is job
    states = [compressor.job(f"chat {number}").state for number in range(5)]
    assert states == ["idle"] * 4 + ["failed"] and compressor.job(SESSION).state == "done"


async def test_twenty_compressors_leave_no_task_behind(make, host):
    host.gate.clear()
    before = asyncio.all_tasks()
    for _ in range(20):
        compressor = make()
        compressor.start(SESSION)
        await asyncio.sleep(0)
        await compressor.close()
    assert asyncio.all_tasks() == before


async def test_a_failed_database_fails_the_job_with_a_message(compressor, storage):
    await storage.close()
    job = await finished(compressor)
    assert job.state == "failed" and "数据库" in job.message


async def test_a_database_that_fails_at_the_commit_leaves_no_trace(
    compressor, storage, host, monkeypatch
):
    async def broken(*args, **kwargs):
        raise sqlite3.OperationalError("disk I/O error")

    async with running(compressor, host) as job:
        monkeypatch.setattr(storage_module, "add_version", broken)
    assert job.state == "failed" and "数据库" in job.message
    assert (job.version_id, job.covered, job.done) == (None, None, 0)
    assert (await storage.get_session(SESSION)).summary == ""


class Panic(BaseException):
    """What a Rust extension raises: not an Exception."""


@pytest.mark.parametrize("error", [RuntimeError("boom"), Panic("boom")])
async def test_an_unexpected_error_ends_the_job_with_one_log_line(
    compressor, host, caplog, monkeypatch, error
):
    async def broken(session_id):
        raise error

    monkeypatch.setattr(host, "current_chat_provider", broken)
    job = await finished(compressor)
    assert job.state == "failed" and type(error).__name__ in job.message
    assert len(lines_about(caplog, SESSION)) == 1


async def test_a_failure_is_one_log_line_that_names_the_session(compressor, host, caplog):
    host.answers = ["没有可总结的内容"]
    await finished(compressor)
    assert len(lines_about(caplog, SESSION)) == 1


async def test_messages_are_in_the_language_of_the_settings(make, host):
    host.history[SESSION] = []
    compressor = make(settings=Settings(language="en-US"))
    assert "no history" in (await finished(compressor)).message


async def test_a_rebuild_does_not_send_the_summary_so_far(compressor, storage, host):
    await storage.update_session(SESSION, {"summary": "old facts"}, None, 1)
    job = compressor.start(SESSION, rebuild=True)
    await job.wait()
    assert job.state == "done"
    assert "old facts" not in host.prompts[0][1]
