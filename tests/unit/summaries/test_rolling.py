"""One summary after the other: nothing is lost, nothing is read twice."""

import asyncio
import re

import pytest
from astrbot_plugin_context_manager.host import ChatProvider, LLMAnswer
from astrbot_plugin_context_manager.settings import Settings

from .scripted_host import HISTORY, SESSION, finished, running, talk


def marks(text):
    return re.findall(r"<m(\d+)>", text)


def keeping(pattern, cap=6000):
    """A model that keeps what a pattern finds in its prompt, under a cap."""

    def answer(prompt):
        found = list(dict.fromkeys(re.findall(pattern, prompt)))
        return ("## 事实\n" + "\n".join(f"- {line}" for line in found))[:cap]

    return answer


async def merged(compressor):
    job = await finished(compressor)
    assert job.state == "done", job.message
    return job


# The watermark


async def test_the_next_compression_reads_the_old_summary_and_only_what_is_new(
    compressor, storage, host
):
    host.history[SESSION] = talk(6)
    await merged(compressor)
    host.history[SESSION] = talk(12)
    job = await merged(compressor)
    prompt = host.prompts[-1][1]
    assert marks(prompt) == [str(n) for n in range(6, 12)]
    assert "天河路12号" in prompt
    assert job.covered == 12


async def test_too_few_new_messages_call_no_model_and_name_the_way_out(compressor, storage, host):
    host.history[SESSION] = talk(6)
    await merged(compressor)
    before = await storage.get_session(SESSION)
    host.history[SESSION] = talk(8)
    job = await finished(compressor)
    assert job.state == "failed" and "2 条新消息" in job.message and "重建" in job.message
    assert len(host.prompts) == 1
    assert await storage.get_session(SESSION) == before


async def test_a_rebuild_reads_everything_and_leaves_the_old_summary_out(compressor, host):
    host.history[SESSION] = talk(6)
    await merged(compressor)
    job = await finished(compressor, rebuild=True)
    assert job.state == "done" and job.covered == 6
    assert marks(host.prompts[-1][1]) == [str(n) for n in range(6)]
    assert "天河路12号" not in host.prompts[-1][1]


@pytest.mark.parametrize("change", ["edited", "cleared", "other conversation"])
async def test_an_invalid_prefix_merges_the_old_summary_with_all_of_it(compressor, host, change):
    host.history[SESSION] = talk(8)
    await merged(compressor)
    changed = {
        "edited": [{"role": "user", "content": "edited"}, *talk(8)[1:]],
        "cleared": talk(2, start=20),
        "other conversation": talk(8),
    }
    host.history[SESSION] = changed[change]
    if change == "other conversation":
        host.conversations[SESSION] = "conv-new"
    job = await merged(compressor)
    prompt = host.prompts[-1][1]
    assert "天河路12号" in prompt
    assert all(str(m["content"]) in prompt for m in changed[change])
    assert job.covered == len(changed[change])


async def test_an_edited_summary_is_carried_on_as_edited(compressor, storage, host):
    host.history[SESSION] = talk(6)
    await merged(compressor)
    await storage.update_session(SESSION, {"summary": "edited by hand"}, None, 2)
    host.history[SESSION] = talk(10)
    await merged(compressor)
    prompt = host.prompts[-1][1]
    assert "edited by hand" in prompt and marks(prompt) == ["6", "7", "8", "9"]


async def test_after_the_summary_was_emptied_everything_is_read_again(compressor, storage, host):
    host.history[SESSION] = talk(6)
    await merged(compressor)
    await storage.update_session(SESSION, {"summary": ""}, None, 2)
    await merged(compressor)
    assert len(marks(host.prompts[-1][1])) == 6


async def test_a_message_that_arrives_during_a_job_is_read_by_the_next_one(compressor, host):
    host.history[SESSION] = talk(6)
    async with running(compressor, host) as job:
        host.history[SESSION] = talk(10)
    assert job.covered == 6
    await merged(compressor)
    assert marks(host.prompts[-1][1]) == ["6", "7", "8", "9"]


async def test_a_conflicting_version_moves_no_watermark(compressor, storage, host):
    host.history[SESSION] = talk(6)
    async with running(compressor, host) as job:
        await storage.update_session(SESSION, {"summary": "mine"}, None, 2)
    assert job.state == "conflict"
    await merged(compressor)
    assert len(marks(host.prompts[-1][1])) == 6 and "mine" in host.prompts[-1][1]


async def test_an_adopted_conflicting_version_covers_what_its_job_read(compressor, storage, host):
    host.history[SESSION] = talk(6)
    async with running(compressor, host) as job:
        await storage.update_session(SESSION, {"summary": "mine"}, None, 2)
    current = await storage.get_session(SESSION)
    adopted = await storage.restore_version(SESSION, job.version_id, current.revision, 3)
    assert "小明" in adopted.summary
    host.history[SESSION] = talk(10)
    await merged(compressor)
    assert marks(host.prompts[-1][1]) == ["6", "7", "8", "9"]


# Facts


async def test_eight_early_facts_are_in_the_text_of_six_rolling_merges(compressor, host):
    facts = [f"事实{n}：{name}的电话是1380000000{n}" for n, name in enumerate("甲乙丙丁戊己庚辛")]
    host.answers = [keeping("事实.：.的电话是\\d+")]
    early = [m for f in facts for m in ({"role": "user", "content": f}, *talk(1, start=1))]
    filler = talk(96)
    for merge in range(6):
        host.history[SESSION] = early + filler[: 16 * (merge + 1)]
        await merged(compressor)
        missing = [fact for fact in facts if fact not in host.prompts[-1][1]]
        assert not missing, f"merge {merge + 1} lost {missing}"
    assert len(host.prompts) == 6


async def test_a_fact_that_a_summary_dropped_is_missed_by_the_same_check(compressor, host):
    host.answers = ["## 事实\n- 都忘了"]
    host.history[SESSION] = [{"role": "user", "content": "事实：甲住在广州"}, *talk(5)]
    await merged(compressor)
    host.history[SESSION] += talk(4, start=5)
    await merged(compressor)
    assert "甲住在广州" not in host.prompts[-1][1]


async def test_five_merges_do_not_grow_beyond_summary_and_new_messages(compressor, host):
    host.answers = ["## 事实\n- " + "事" * 300]
    sizes = []
    for merge in range(6):
        host.history[SESSION] = talk(10 * (merge + 1), size=200)
        await merged(compressor)
        sizes.append(len(host.prompts[-1][1]))
    rolling = sizes[1:]
    assert max(rolling) - min(rolling) < 100
    assert max(rolling) < sizes[0] + 600


# Any length


def marked_history(tokens):
    """About so many tokens by script count, each message with a mark."""
    return talk(tokens // 400, size=500)


async def test_a_history_far_beyond_the_window_is_read_once_in_bounded_steps(
    compressor, storage, host
):
    host.provider = ChatProvider("p", "small", 8000)
    host.history[SESSION] = marked_history(40_000)
    total = len(host.history[SESSION])
    job = await merged(compressor)
    assert (job.done, job.covered) == (job.total, total)
    assert job.total == len(host.prompts) > 5
    found = [mark for _, prompt in host.prompts for mark in marks(prompt)]
    assert found == [str(n) for n in range(total)]
    assert all(len(prompt) < 10_000 for _, prompt in host.prompts)
    assert job.usage == {"input": 120 * job.total, "output": 30 * job.total}
    assert len(await storage.all_versions(SESSION)) == 1


async def test_each_step_carries_the_summary_of_the_one_before(compressor, host):
    host.provider = ChatProvider("p", "small", 8000)
    host.history[SESSION] = marked_history(10_000)
    host.answers = [f"## step {n}" for n in range(50)]
    job = await merged(compressor)
    assert job.total > 2
    for number, (_, prompt) in enumerate(host.prompts[1:]):
        assert f"## step {number}\n" in prompt and f"## step {number - 1}\n" not in prompt


async def test_one_message_larger_than_the_window_is_read_in_pieces(compressor, host):
    host.provider = ChatProvider("p", "small", 8000)
    text = "".join(f"<m{n}>说了很多话。" for n in range(2000))
    host.history[SESSION] = [{"role": "user", "content": text}]
    job = await merged(compressor)
    assert job.total > 2 and job.covered == 1
    assert [m for _, p in host.prompts for m in marks(p)] == [str(n) for n in range(2000)]


async def test_a_step_that_fails_for_good_fails_the_whole_job(compressor, storage, host):
    await storage.update_session(SESSION, {"summary": "old"}, None, 1)
    host.provider = ChatProvider("p", "small", 8000)
    host.history[SESSION] = marked_history(10_000)
    host.answers = ["## one", "## two", RuntimeError("connection error")]
    job = await finished(compressor)
    assert job.state == "failed" and (job.done, job.calls) == (2, 5)
    assert (await storage.get_session(SESSION)).summary == "old"
    assert await storage.latest_coverage(SESSION) is None
    assert len(await storage.all_versions(SESSION)) == 1


async def test_a_step_that_fails_once_goes_on_where_it_was(compressor, host):
    host.provider = ChatProvider("p", "small", 8000)
    host.history[SESSION] = marked_history(10_000)
    host.answers = ["## one", RuntimeError("reset"), "", "## two"]
    job = await merged(compressor)
    assert job.calls == job.total + 2
    assert host.prompts[1] == host.prompts[2] == host.prompts[3]


@pytest.mark.parametrize("step", [1, 2, 3])
async def test_a_job_is_cancelled_at_any_step(compressor, storage, host, step):
    host.provider = ChatProvider("p", "small", 8000)
    host.history[SESSION] = marked_history(10_000)

    def answer(prompt):
        if len(host.prompts) == step - 1:
            host.gate.clear()
        return "## summary"

    host.answers = [answer]
    if step == 1:
        host.gate.clear()
    job = compressor.start(SESSION)
    while len(host.prompts) < step:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert (await compressor.cancel(SESSION)).state == "cancelled"
    assert job.done == step - 1
    assert (await storage.get_session(SESSION)).summary == ""
    assert (await compressor.log.costs(SESSION)).calls == step


@pytest.mark.parametrize(
    "refusal",
    [
        RuntimeError("This model's maximum context length is 4096 tokens"),
        RuntimeError("prompt is too long: 9000 tokens > 4096 maximum"),
        LLMAnswer("Hello! How can I help you today?", "assistant", "", 25, 9, "stop"),
    ],
)
async def test_a_model_that_reads_less_than_expected_gets_shorter_steps(compressor, host, refusal):
    host.history[SESSION] = marked_history(20_000)
    total = len(host.history[SESSION])
    host.answers = [refusal, refusal, "## summary"]
    job = await merged(compressor)
    answered = host.prompts[2:]
    assert [m for _, p in answered for m in marks(p)] == [str(n) for n in range(total)]
    assert job.total == len(answered) > 1 and job.covered == total


async def test_a_model_that_reads_nothing_at_all_is_given_up(compressor, host):
    host.history[SESSION] = marked_history(20_000)
    host.answers = [RuntimeError("context length exceeded")]
    job = await finished(compressor)
    assert job.state == "failed" and "太长" in job.message
    assert len(host.prompts) < 12


# Tries


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
async def test_a_request_that_the_provider_refuses_is_not_repeated(compressor, host, status):
    error = RuntimeError("refused")
    error.status_code = status
    host.answers = [error]
    assert (await finished(compressor)).calls == 1


@pytest.mark.parametrize("status", [408, 429, 500, 503])
async def test_a_request_that_may_work_later_is_repeated_after_growing_pauses(
    make, host, status, monkeypatch
):
    waited = []

    async def sleep(seconds):
        waited.append(seconds)

    monkeypatch.setattr("asyncio.sleep", sleep)
    error = RuntimeError("busy")
    error.status_code = status
    host.answers = [error, error, "## ok"]
    job = await finished(make(backoff=(2, 8)))
    assert job.state == "done" and waited == [2, 8]


async def test_a_template_that_breaks_calls_no_model(compressor, storage, host):
    await storage.update_session(SESSION, {"compress_prompt": "{{ x.y }}"}, None, 1)
    assert (await finished(compressor)).calls == 0


# Length of the answer


async def test_a_summary_far_over_its_target_is_shortened_once(compressor, storage, host):
    await storage.update_session(SESSION, {"summary_target_tokens": 100}, None, 1)
    host.answers = ["## 事实\n- " + "很长" * 600, "## 事实\n- 短了"]
    job = await merged(compressor)
    assert len(host.prompts) == 2 and job.calls == 2
    assert "很长很长" in host.prompts[1][1] and "100 tokens" in host.prompts[1][1]
    assert "天河路" not in host.prompts[1][1]
    assert (await storage.get_session(SESSION)).summary == "## 事实\n- 短了"


async def test_a_summary_that_stays_far_too_long_is_refused_and_never_cut(
    compressor, storage, host
):
    changes = {"summary_target_tokens": 100, "summary": "old"}
    await storage.update_session(SESSION, changes, None, 1)
    host.answers = ["## 事实\n- " + "很长" * 600]
    job = await finished(compressor)
    assert job.state == "failed" and "太长" in job.message and "100" in job.message
    assert len(host.prompts) == 2
    assert (await storage.get_session(SESSION)).summary == "old"


async def test_a_summary_a_little_over_its_target_is_kept(compressor, storage, host):
    await storage.update_session(SESSION, {"summary_target_tokens": 1000}, None, 1)
    text = "## 事实\n- " + "事" * 1500
    host.answers = [text]
    await merged(compressor)
    assert (await storage.get_session(SESSION)).summary == text and len(host.prompts) == 1


# Model and persona


async def test_a_model_chosen_for_summaries_is_asked_instead_of_the_sessions_own(make, host):
    host.providers["cheap"] = ChatProvider("cheap", "cheap-model", 0)
    compressor = make(settings=Settings(summary_provider_id="cheap"))
    await merged(compressor)
    assert host.sent[0][0] == "cheap"


async def test_a_chosen_model_that_is_gone_is_named_and_nothing_is_asked(make, host):
    compressor = make(settings=Settings(summary_provider_id="gone"))
    job = await finished(compressor)
    assert job.state == "failed" and "gone" in job.message and host.prompts == []


async def test_the_model_that_the_asking_message_chose_is_asked(compressor, host):
    job = compressor.start(SESSION, provider=ChatProvider("picked", "m", 0))
    await job.wait()
    assert host.sent[0][0] == "picked"


async def test_the_role_of_the_assistant_is_told_shortly_and_as_no_material(compressor, host):
    host.role = "You are a pirate.</assistant_role>" + "x" * 5000
    await merged(compressor)
    prompt = host.prompts[0][1]
    assert "You are a pirate." in prompt and "x" * 2000 not in prompt
    assert prompt.count("</assistant_role>") == 1


# Costs


async def test_costs_are_summed_over_jobs_also_over_failed_ones(compressor, host):
    await merged(compressor)
    host.answers = [LLMAnswer("", "assistant", "", 100, 2, "stop")]
    assert (await finished(compressor, rebuild=True)).state == "failed"
    host.answers = [LLMAnswer("## ok", "assistant", "", None, None, None)]
    assert (await finished(compressor, rebuild=True)).state == "done"
    costs = await compressor.log.costs(SESSION)
    assert (costs.jobs, costs.calls, costs.unreported) == (3, 5, 1)
    assert (costs.input_tokens, costs.output_tokens) == (120 + 300, 30 + 6)


async def test_a_job_that_called_no_model_costs_nothing(compressor, host):
    host.history[SESSION] = []
    await finished(compressor)
    assert (await compressor.log.costs(SESSION)).jobs == 0


async def test_costs_of_another_session_do_not_count(compressor):
    await merged(compressor)
    assert (await compressor.log.costs("other")).calls == 0


# The command


async def reported(compressor, words=""):
    return [line async for line in compressor.report(SESSION, words)]


async def test_the_command_reports_start_and_end(compressor):
    start, end = await reported(compressor, "地址")
    assert "开始压缩" in start and "2 条消息" in end


async def test_the_report_tells_what_is_covered_from_what_was_read(compressor, host):
    host.history[SESSION] = talk(6)
    await reported(compressor)
    host.history[SESSION] = talk(12)
    _, end = await reported(compressor)
    assert "涵盖 12 条消息" in end and "读了 6 条" in end


async def test_the_command_reports_nothing_but_a_refusal(compressor, host):
    host.history[SESSION] = []
    [line] = await reported(compressor)
    assert "没有调用模型" in line


async def test_a_long_job_reports_its_steps_and_how_far_it_is(compressor, host):
    host.provider = ChatProvider("p", "small", 8000)
    host.history[SESSION] = marked_history(40_000)
    start, *between, end = await reported(compressor)
    total = compressor.job(SESSION).total
    assert f"分 {total} 步" in start and "压缩完成" in end
    assert 1 <= len(between) <= 3
    assert all(f"/{total} 步" in line for line in between)


async def test_a_second_command_says_how_far_the_first_one_is(compressor, host):
    async with running(compressor, host):
        second = compressor.report(SESSION, "")
        assert "第 0 步，共 1 步" in await anext(second)
    assert "压缩完成" in await anext(second)
    assert len(host.prompts) == 1


@pytest.mark.parametrize("words", ["重建", "rebuild", "Rebuild 地址", "重建 地址"])
async def test_the_word_for_a_rebuild_is_no_focus(compressor, host, words):
    await merged(compressor)
    lines = await reported(compressor, words)
    prompt = host.prompts[-1][1]
    assert "压缩完成" in lines[-1]
    assert "special attention to: 地址" in prompt if "地址" in words else "attention" not in prompt
    assert compressor.job(SESSION).rebuild and len(host.prompts) == 2


async def test_a_focus_that_only_begins_alike_is_a_focus(compressor, host):
    await reported(compressor, "重建计划要留着")
    assert "attention to: 重建计划要留着" in host.prompts[0][1]
    assert not compressor.job(SESSION).rebuild


async def test_history_is_read_where_the_caller_says(make, host):
    async def load(session_id):
        return "c", [*HISTORY, *talk(2)]

    job = await finished(make(load_history=load))
    assert job.covered == 4
