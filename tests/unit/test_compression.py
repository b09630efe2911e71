"""A job either stores a summary or changes nothing and says why."""

import asyncio
import logging

import pytest
from astrbot_plugin_context_manager.compression import Compressor
from astrbot_plugin_context_manager.host import ChatProvider, LLMAnswer
from astrbot_plugin_context_manager.settings import Settings
from astrbot_plugin_context_manager.storage import Storage
from astrbot_plugin_context_manager.tokens import TokenCounter
from astrbot_plugin_context_manager.watermark import prefix_hash

SESSION = "qq:GroupMessage:1"
HISTORY = [
    {"role": "user", "content": "我叫小明，住在广州天河路12号"},
    {"role": "assistant", "content": "记住了"},
    {"role": "_checkpoint", "content": {"id": "x"}},
]


class ScriptedHost:
    """The host's side of a compression, with a scripted model."""

    def __init__(self):
        self.history = {SESSION: list(HISTORY)}
        self.answers = ["## 事实\n- 小明住在广州天河路12号"]
        self.prompts = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked = asyncio.Event()
        self.provider = ChatProvider("p", "model-x", 0)

    async def load_history(self, session_id):
        return f"conv-{session_id}", list(self.history.get(session_id, []))

    async def current_chat_provider(self, session_id):
        return self.provider

    async def generate(self, session_id, provider_id, system_prompt, prompt):
        self.prompts.append((session_id, prompt))
        self.asked.set()
        await self.gate.wait()
        answer = self.answers[min(len(self.prompts), len(self.answers)) - 1]
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, LLMAnswer):
            return answer
        return LLMAnswer(answer, "assistant", "", 120, 30, "stop")


@pytest.fixture
async def storage(tmp_path):
    opened = await Storage.open(tmp_path / "context_manager.db", Settings())
    await opened.see_session(SESSION, "群", "qq", 1)
    yield opened
    await opened.close()


@pytest.fixture
async def host():
    return ScriptedHost()


@pytest.fixture
async def compressor(storage, host):
    made = Compressor(storage, host, TokenCounter(), Settings(), clock=lambda: 1000)
    yield made
    await made.close()


async def finished(compressor, session_id=SESSION, focus=""):
    job = compressor.start(session_id, focus)
    await job.wait()
    return job


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
    assert "TOP-SECRET" not in host.prompts[0][1]


async def test_the_focus_the_old_summary_and_the_target_are_in_the_prompt(
    compressor, storage, host
):
    changes = {"summary": "old facts", "summary_target_tokens": 777}
    await storage.update_session(SESSION, changes, None, 1)
    await finished(compressor, focus="地址")
    prompt = host.prompts[0][1]
    assert "old facts" in prompt and "777" in prompt and "地址" in prompt


async def test_a_session_without_history_calls_no_model(compressor, host):
    host.history[SESSION] = []
    job = await finished(compressor)
    assert job.state == "failed" and "没有可以压缩" in job.message
    assert host.prompts == []


async def test_a_session_without_a_model_says_so(compressor, host):
    host.provider = None
    job = await finished(compressor)
    assert job.state == "failed" and "对话模型" in job.message


async def test_a_history_larger_than_the_model_is_refused_with_both_numbers(compressor, host):
    host.provider = ChatProvider("p", "small", 2000)
    job = await finished(compressor)
    assert job.state == "failed" and "没有调用模型" in job.message
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
        RuntimeError("connection error"),
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


async def test_28_failures_in_a_row_leave_the_old_summary_and_the_29th_try_works(
    compressor, storage, host
):
    await storage.update_session(SESSION, {"summary": "old"}, None, 1)
    host.answers = [RuntimeError("connection error")] * 28 + ["## ok"]
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


async def test_a_failed_database_fails_the_job_with_a_message(compressor, storage, caplog):
    await storage.close()
    caplog.set_level(logging.CRITICAL)
    job = await finished(compressor)
    assert job.state == "failed" and "database" in job.message
