"""Summaries of real chats: of any length, one after the other, and unasked."""

import json
import re
import statistics
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dev.host_process import HostConfig, HostProcess
from dev.script import Gate, Reply, kind_of

from .conftest import HostPool
from .histories import mixed_history, text_turn
from .profiles import VERSIONS
from .sessions import Session, wait_until

FACTS = tuple(
    f"fact {n}: {name} lives in house {700 + n}"
    for n, name in enumerate(("Ann", "Bob", "Cid", "Dan", "Eve", "Fay", "Gus", "Hal"), start=1)
)
AUTOMATIC = {"auto_compress": True, "auto_compress_min_messages": 8}


@pytest.fixture
def script(host: HostProcess) -> Iterator[Callable[[str, object], None]]:
    """Answers summaries whose prompt holds a mark; all answers end with the test."""
    removers = []

    def add(mark: str, answer: Reply | Callable[[str], Reply]) -> None:
        def reply(body: dict) -> Reply | None:
            shown = json.dumps(body, ensure_ascii=False)
            if kind_of(body) != "plain" or mark not in shown:
                return None
            return answer if isinstance(answer, Reply) else answer(shown)

        removers.append(host.model.add_script(reply))

    yield add
    for remove in removers:
        remove()


def job_of(chat: Session) -> dict:
    status, job = chat.host.web.api("GET", "session/compress", session_id=chat.origin)
    assert status == 200, job
    return job


def compressed(chat: Session, **more: object) -> dict:
    """Compresses as the page does and waits for the end."""
    body = {"session_id": chat.origin, **more}
    status, job = chat.host.web.api("POST", "session/compress", body)
    assert status == 200, job
    wait_until(lambda: job_of(chat)["state"] != "running", "the compression", 120)
    return job_of(chat)


def summaries(chat: Session, mark: str) -> list[str]:
    """The prompts of all summaries that hold a mark, oldest first."""
    return [request.dump() for request in chat.host.model.requests(mark, "plain")]


def marked(mark: str, turns: int, size: int = 400) -> list[dict]:
    """Turns whose messages hold a mark and their number."""
    found = [m for n in range(turns) for m in text_turn(n, size)]
    for number, message in enumerate(found):
        message["content"] = f"<{mark}-{number}> {message['content']}"
    return found


def new_mark() -> str:
    return f"mark{uuid.uuid4().hex[:8]}"


def keeping_facts(prompt: str) -> Reply:
    """A model that keeps the facts it is given and nothing else."""
    found = dict.fromkeys(re.findall(r"fact \d: \w+ lives in house \d+", prompt))
    return Reply("## Facts\n" + "\n".join(f"- {fact}" for fact in found))


# One after the other


def test_the_next_summary_reads_only_what_is_new(host: HostProcess) -> None:
    chat, mark = Session(host), new_mark()
    history = marked(mark, 5)
    chat.seed(history[:6])
    assert compressed(chat)["covered"] == 6
    host.store.overwrite(chat.conversation_id, history[:8], 0)
    refused = compressed(chat)
    assert refused["state"] == "failed" and "2 条新消息" in refused["message"]
    host.store.overwrite(chat.conversation_id, history, 0)
    job = compressed(chat)
    assert (job["state"], job["covered"]) == ("done", 10)
    first, second = summaries(chat, mark)
    assert f"<{mark}-0>" in first and f"<{mark}-5>" not in second and f"<{mark}-6>" in second
    assert "A short summary." in second
    assert job["costs"]["jobs"] == 2 and job["costs"]["input_tokens"] > job["usage"]["input"]
    again = "\n".join(chat.command("/context_compress rebuild names"))
    assert "10 条消息" in again
    rebuilt = summaries(chat, mark)[-1]
    assert f"<{mark}-0>" in rebuilt and "A short summary." not in rebuilt
    assert "special attention to: names" in rebuilt


def test_a_role_of_the_chat_is_told_to_the_summarising_model(host: HostProcess) -> None:
    chat, mark = Session(host), new_mark()
    persona = f"pirate-{mark}"
    body = {
        "persona_id": persona,
        "system_prompt": f"Talk like a pirate {mark}.",
        "begin_dialogs": [],
    }
    host.web.post("/api/persona/create", body)
    chat.conversation_id = host.store.seed(chat.origin, mixed_history(3), persona_id=persona)
    compressed(chat)
    [prompt] = summaries(chat, f"Talk like a pirate {mark}.")
    assert "<assistant_role>" in prompt


@pytest.mark.full
def test_eight_early_facts_survive_six_merges_over_48_turns(
    host: HostProcess, script: Callable
) -> None:
    chat, mark = Session(host, recent_context_token_budget=4000), new_mark()
    script(mark, keeping_facts)
    pairs = [f"{first}; {second}" for first, second in zip(FACTS[::2], FACTS[1::2], strict=True)]
    answer = {"role": "assistant", "content": mark}
    chat.seed([m for text in pairs for m in ({"role": "user", "content": text}, answer)])
    options = {"auto_compress": True, "auto_compress_min_messages": 12, "window_keep_ratio": 1.0}
    assert chat.change(**options)[0] == 200
    for number in range(48):
        chat.say(f"{mark} filler {number}: " + "the train left on time; " * 12)
        wait_until(lambda: job_of(chat)["state"] != "running", "the merge")
    prompts = summaries(chat, mark)
    assert len(prompts) >= 6
    for number, prompt in enumerate(prompts, start=1):
        assert not [f for f in FACTS if f not in prompt], f"merge {number}"
    assert max(map(len, prompts[1:])) < 3 * min(map(len, prompts[1:]))
    row = chat.row()
    assert all(fact in row["summary"] for fact in FACTS)
    _, versions = host.web.api("GET", "session/versions", session_id=chat.origin)
    assert {version["source"] for version in versions["items"]} == {"auto"}


# Any length


def peak_memory(pid: int) -> int:
    """The most memory a process has had since the last reset, in bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024


def reset_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


@pytest.mark.full
@pytest.mark.parametrize("version", VERSIONS)
def test_400000_tokens_are_read_once_by_a_window_of_32000_in_bounded_memory(
    version: str, hosts: HostPool
) -> None:
    host = hosts.start(HostConfig(version=version, max_context_tokens=32_000))
    try:
        warm = Session(host)
        warm.seed(marked(new_mark(), 200, 1000))
        assert compressed(warm)["state"] == "done"
        chat, mark = Session(host), new_mark()
        history = marked(mark, 1900, 1000)
        chat.seed(history)
        reset_peak(host.pid)
        before = peak_memory(host.pid)
        job = compressed(chat)
        grown = peak_memory(host.pid) - before
        assert (job["state"], job["covered"]) == ("done", len(history)), job
        assert job["tokens_before"] >= 400_000
        assert job["progress"]["done"] == job["progress"]["total"] > 10
        prompts = summaries(chat, mark)
        found = [int(n) for prompt in prompts for n in re.findall(rf"<{mark}-(\d+)>", prompt)]
        assert found == list(range(len(history)))
        assert max(map(len, prompts)) < 32_000 * 6
        print(f"{version}: {len(prompts)} steps, grown by {grown / 2**20:.1f} MB")
        assert grown < 64 * 2**20
    finally:
        host.close()


# Unasked


def test_what_left_the_window_is_summarised_after_the_reply(
    host: HostProcess, script: Callable
) -> None:
    mark = new_mark()
    chat = Session(host, recent_context_token_budget=4000)
    chat.seed(marked(mark, 20, 1000))
    chat.ask(f"before {mark}")
    assert summaries(chat, f"<{mark}-0>") == []
    left = _left_out(chat)
    assert left >= 8
    chat.change(
        **{**AUTOMATIC, "auto_compress_min_messages": left + 1, "auto_compress_notice": True}
    )
    chat.ask("one short of enough")
    gate = Gate()
    script(f"<{mark}-0>", Reply("## What was said", gate=gate))
    chat.change(auto_compress_min_messages=left)
    chat.ask("exactly enough")
    gate.wait_entered()
    assert job_of(chat)["state"] == "running" and job_of(chat)["automatic"]
    chat.ask("while it runs")
    gate.release()
    wait_until(lambda: job_of(chat)["state"] == "done", "the automatic summary")
    assert len(summaries(chat, f"<{mark}-0>")) == 1
    row = chat.row()
    assert row["summary"] == "## What was said"
    assert row["coverage"]["messages"] == job_of(chat)["covered"] == left
    told = [text for text in chat.replies() if "自动压缩" in text or "压缩完成" in text]
    assert len(told) == 2 and f"{left} 条消息" in told[0]
    _assert_nothing_is_lost(chat)


def test_seven_uncovered_messages_outside_the_window_call_no_model_and_the_eighth_one_once(
    host: HostProcess,
) -> None:
    long_turn = [*text_turn(0, 400), {"role": "assistant", "content": "one more"}]
    for opening, calls in (([], 1), (long_turn, 0)):
        mark = new_mark()
        # Four turns of two, or one of three and two of two.
        history = [*opening, *marked(mark, 2 if opening else 4)]
        chat = Session(host, auto_compress=1)
        chat.seed(history)
        assert chat.row()["options"]["auto_compress_min_messages"] == 8
        assert host.web.api("POST", "session/topic", {"session_id": chat.origin})[0] == 200
        for number in range(3):
            chat.ask(f"message {number}")
            assert _left_out(chat) == len(history) == 7 + calls
        wait_until(lambda chat=chat: job_of(chat)["state"] != "running", "the job")
        assert len(summaries(chat, mark)) == calls
        assert chat.row()["coverage"]["messages"] == 8 * calls
        assert job_of(chat)["state"] == ("done" if calls else "idle")


def test_with_a_tail_a_full_request_starts_a_job_and_the_tail_is_what_stays(
    host: HostProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = new_mark()
    # A report between the two requests may move the estimates, and the tail by a turn.
    monkeypatch.setattr(host.model, "default_usage", None)
    options = {"auto_compress": True, "tail_tokens": 2000, "auto_compress_threshold": 0.3}
    chat = Session(host, recent_context_token_budget=20_000)
    history = marked(mark, 20, 1000)
    chat.seed(history)
    assert chat.change(**options)[0] == 200
    chat.ask("this makes it full")
    wait_until(lambda: job_of(chat)["state"] == "done", "the automatic summary")
    covered = job_of(chat)["covered"]
    sent = chat.ask("what is left?").dump()
    numbers = [int(n) for n in re.findall(rf"<{mark}-(\d+)>", sent)]
    assert 0 < len(numbers) < 20
    assert numbers == list(range(covered, len(history)))
    _assert_nothing_is_lost(chat)


def _left_out(chat: Session) -> int:
    _, preview = chat.host.web.api("GET", "session/preview", session_id=chat.origin)
    return preview["left_out"]["messages"]


def _assert_nothing_is_lost(chat: Session) -> None:
    _, preview = chat.host.web.api("GET", "session/preview", session_id=chat.origin)
    zones = preview["zones"]
    assert zones["total"] == zones["sent"] + zones["covered"] + zones["left_out"]
    assert zones["total"] == chat.row()["coverage"]["total"]


@pytest.mark.full
def test_a_failure_moves_nothing_and_starts_a_pause_that_survives_a_restart(
    hosts: HostPool, script: Callable, host: HostProcess
) -> None:
    own = hosts.start(HostConfig(version=host.config.version))
    try:
        mark = new_mark()
        chat = Session(own, recent_context_token_budget=4000, **AUTOMATIC)
        chat.seed(marked(mark, 20, 1000))
        script(mark, Reply("no more quota", status=400))
        chat.ask("this starts a job")
        wait_until(lambda: job_of(chat)["pause"], "the pause")
        calls = len(summaries(chat, mark))
        assert calls == 1 and chat.row()["coverage"]["messages"] == 0
        own.kill()
        own.start()
        chat.ask("this comes too early")
        job = job_of(chat)
        assert job["state"] == "idle" and job["pause"]["failures"] == 1
        assert len(summaries(chat, mark)) == calls
        assert compressed(chat)["state"] == "failed"
    finally:
        own.close()


def _cut_and_not_repaired(
    chat: Session, mark: str, words: str, meanwhile: Callable[[], object] = lambda: None
) -> tuple[list[dict], Gate]:
    """A finished request whose repair waits behind the next one; its history and that gate."""
    history = marked(mark, 20, 1000)
    chat.seed(history)
    names = new_mark(), new_mark()
    first, second = map(chat.host.model.gate, names)
    chat.start(f"{words} #gate:{names[0]}")
    first.wait_entered()
    # Holds the lock that every repair waits for.
    chat.start(f"waiting #gate:{names[1]}", sender=1)
    chat.host.web.wait_at_lock(chat.origin, 2)
    meanwhile()
    first.release()
    second.wait_entered()
    return history, second


def _assert_all_of_it_is_summarised(chat: Session, mark: str, history: list, job: dict) -> None:
    assert job["state"] == "done" and job["covered"] >= len(history), job
    [prompt] = summaries(chat, f"<{mark}-0>")
    assert f"<{mark}-39>" in prompt
    assert chat.row()["coverage"]["out_of_date"] is False


def test_a_summary_is_never_made_of_a_cut_copy_that_is_not_repaired_yet(
    host: HostProcess,
) -> None:
    chat, mark = Session(host, "group", recent_context_token_budget=4000), new_mark()
    history, second = _cut_and_not_repaired(chat, mark, "#tool:answer_user*1")
    stored = len(chat.stored)
    job = compressed(chat)
    second.release()
    chat.finish()
    if host.config.version != "4.26.7":
        # Otherwise the host stored the whole history at once and nothing was at stake.
        assert stored < len(history)
    _assert_all_of_it_is_summarised(chat, mark, history, job)


def test_a_new_instance_reads_the_whole_history_behind_a_cut_of_the_old_one(
    host: HostProcess,
) -> None:
    chat, mark = Session(host, "group", recent_context_token_budget=4000), new_mark()
    history, second = _cut_and_not_repaired(chat, mark, "cut", host.web.reload_plugin)
    assert len(chat.stored) < len(history)
    job = compressed(chat)
    second.release()
    chat.finish()
    _assert_all_of_it_is_summarised(chat, mark, history, job)
    assert chat.stored[: len(history)] == history


@pytest.mark.full
@pytest.mark.parametrize(
    "reply",
    [Reply("busy", status=500), Reply("slow down", status=429), Reply("", drop_connection=True)],
    ids=["500", "429", "dropped"],
)
def test_a_call_that_fails_is_tried_three_times_and_then_reported(
    host: HostProcess, script: Callable, reply: Reply
) -> None:
    chat, mark = Session(host, summary="older summary"), new_mark()
    chat.seed(marked(mark, 5))
    script(mark, reply)
    job = compressed(chat)
    assert job["state"] == "failed" and "共调用 3 次" in job["message"], job
    assert chat.row()["summary"] == "older summary"


@pytest.mark.full
def test_a_provider_that_finds_the_prompt_too_long_gets_shorter_ones(
    host: HostProcess, script: Callable
) -> None:
    chat, mark = Session(host), new_mark()
    history = marked(mark, 100, 1000)
    chat.seed(history)
    limit = 40_000
    removed = []

    def answer(prompt: str) -> Reply:
        if len(prompt) > limit:
            text = "This model's maximum context length is 8192 tokens."
            return Reply(text, status=400)
        removed.append(prompt)
        return Reply("## Summary")

    script(mark, answer)
    job = compressed(chat)
    assert (job["state"], job["covered"]) == ("done", len(history)), job
    found = [int(n) for prompt in removed for n in re.findall(rf"<{mark}-(\d+)>", prompt)]
    assert found == list(range(len(history)))


@pytest.mark.full
def test_a_host_killed_in_the_middle_of_a_job_keeps_the_old_summary(
    hosts: HostPool, script: Callable, host: HostProcess
) -> None:
    own = hosts.start(HostConfig(version=host.config.version))
    try:
        mark, gate = new_mark(), Gate()
        chat = Session(own, summary="older summary")
        chat.seed(marked(mark, 20))
        script(mark, Reply("never stored", gate=gate))
        own.web.api("POST", "session/compress", {"session_id": chat.origin})
        gate.wait_entered()
        own.kill()
        gate.release()
        own.start()
        assert chat.row()["summary"] == "older summary"
        assert job_of(chat)["state"] == "idle"
        assert compressed(chat)["state"] == "done"
        assert chat.row()["summary"] == "never stored"
    finally:
        own.close()


@pytest.mark.full
def test_twenty_messages_in_two_chats_start_one_job_each(
    host: HostProcess, script: Callable
) -> None:
    chats, gate = {}, Gate()
    for _ in range(2):
        mark = new_mark()
        chat = Session(host, recent_context_token_budget=4000, **AUTOMATIC)
        chat.seed(marked(mark, 20, 1000))
        script(f"<{mark}-0>", Reply(f"## Summary of {mark}", gate=gate))
        chats[mark] = chat
    for number in range(10):
        for chat in chats.values():
            chat.start(f"message {number}")
    for chat in chats.values():
        wait_until(lambda chat=chat: len(chat.replies()) >= 10, "ten replies")
        chat.finish()
    gate.release()
    for mark, chat in chats.items():
        wait_until(lambda chat=chat: job_of(chat)["state"] == "done", "the job")
        [prompt] = summaries(chat, f"<{mark}-0>")
        other = next(each for each in chats if each != mark)
        assert other not in prompt and chat.row()["summary"] == f"## Summary of {mark}"
        _assert_nothing_is_lost(chat)


@pytest.mark.full
def test_replies_are_as_fast_with_a_summariser_that_takes_five_seconds(
    host: HostProcess, script: Callable
) -> None:
    times: dict[bool, list[float]] = {True: [], False: []}
    chats = {}
    for on in times:
        mark = new_mark()
        chat = chats[on] = Session(host, recent_context_token_budget=4000)
        chat.seed(marked(mark, 20, 1000))
        script(mark, Reply("## Summary", delay=5.0))
        chat.ask("warm")
        chat.change(auto_compress=on, auto_compress_min_messages=2, window_keep_ratio=1.0)
    for number in range(20):
        for on, chat in chats.items():
            started = time.monotonic()
            before = len(chat.replies())
            chat.start(f"message {number} " + "word " * 100)
            host.qq.wait_reply(chat.target, before)
            times[on].append(time.monotonic() - started)
            chat.finish()
    ratio = statistics.median(times[True]) / statistics.median(times[False])
    print(f"median with {statistics.median(times[True]) * 1000:.0f} ms, ratio {ratio:.2f}")
    assert job_of(chats[True])["state"] in ("running", "done")
    assert job_of(chats[False])["state"] == "idle"
    assert ratio <= 1.2
