"""What the window holds, and how a chat is told of it, on real hosts."""

import json
import re
from contextlib import closing

import pytest

from dev.host_process import HostProcess
from dev.scripted_model import ScriptedModel

from .histories import mixed_history, text_turn, tool_turn
from .profiles import NONE, VERSIONS
from .sessions import Session, our_lines, wait_until

TURNS = 12


def questions(request: object) -> list[int]:
    """The numbers of the seeded questions in a request."""
    return [int(n) for n in re.findall(r"question (\d+):", request.dump())]


@pytest.fixture
def chat(host: HostProcess) -> Session:
    """A private chat with a history that fits the budget, whatever other chats taught."""
    chat = Session(host)
    chat.seed(mixed_history(TURNS, 100))
    return chat


def group_messages(host: HostProcess) -> int:
    return host.web.api("GET", "health")[1]["counters"].get("group_messages", 0)


def preview(chat: Session) -> dict:
    status, answer = chat.host.web.api("GET", "session/preview", session_id=chat.origin)
    assert status == 200, answer
    return answer


def last_record(chat: Session) -> dict:
    def read() -> dict | None:
        _, answer = chat.host.web.api("GET", "session/requests", session_id=chat.origin, limit=1)
        return next(iter(answer["items"]), None)

    wait_until(read, "the record of the request")
    return read()


# New topics


def test_a_new_topic_leaves_older_turns_out_until_it_is_taken_back(chat: Session) -> None:
    before = chat.stored
    assert questions(chat.ask(f"first of {chat.number}")) == list(range(1, TURNS + 1))
    assert "新话题" in chat.command("/新话题")[0]
    shown = preview(chat)
    assert shown["topic"]["source"] == "user"
    assert (shown["left_out"]["reason"], shown["left_out"]["turns"]) == ("topic", TURNS + 1)
    request = chat.ask(f"second of {chat.number}")
    assert questions(request) == [] and f"first of {chat.number}" not in request.dump()
    request = chat.ask(f"third of {chat.number}")
    assert f"second of {chat.number}" in request.dump() and questions(request) == []
    assert chat.stored[: len(before)] == before and len(chat.stored) == len(before) + 6
    status, answer = chat.host.web.api(
        "POST", "session/topic", {"session_id": chat.origin, "undo": True}
    )
    assert (status, answer["changed"]) == (200, True)
    assert questions(chat.ask(f"fourth of {chat.number}")) == list(range(1, TURNS + 1))


def test_a_topic_needs_a_known_session_and_something_before_it(host: HostProcess) -> None:
    unknown = {"session_id": "qq:GroupMessage:nobody"}
    assert host.web.api("POST", "session/topic", unknown)[0] == 404
    assert host.web.api("POST", "session/topic", unknown | {"undo": "yes"})[0] == 400
    chat = Session(host, fixed_memory="rule")
    status, answer = host.web.api("POST", "session/topic", {"session_id": chat.origin})
    assert (status, answer["changed"]) == (200, False)


def test_a_group_that_talks_by_itself_begins_a_new_topic(host: HostProcess) -> None:
    chat = Session(host, "group", topic_idle_messages=4)
    chat.seed(mixed_history(TURNS, 100))
    assert len(questions(chat.ask(f"first of {chat.number}"))) == TURNS
    seen = group_messages(host)
    for number, addressed in enumerate((False, False, True, False, False, False, False), 1):
        if addressed:
            assert len(questions(chat.ask(f"between of {chat.number}"))) == TURNS
        else:
            host.qq.send_group(chat.number, chat.number + number, f"chatter {number}", at=False)
        # The platform delivers them side by side.
        wait_until(lambda n=number: group_messages(host) >= seen + n, "the plugin to count it")
    size = host.log_size()
    assert questions(chat.ask(f"second of {chat.number}")) == []
    assert any("new topic" in line for line in our_lines(host.log(max(0, size - 2000))))


# Zones


def test_pinned_first_turns_and_a_tail_stay_when_the_summary_covers_the_rest(
    chat: Session,
) -> None:
    chat.ask(f"first of {chat.number}")
    assert chat.change(keep_first_turns=1, tail_tokens=150)[0] == 200
    assert len(questions(chat.ask(f"second of {chat.number}"))) == TURNS
    chat.command("/立即压缩")
    request = chat.ask(f"third of {chat.number}")
    sent = questions(request)
    assert sent[0] == 1 and len(sent) <= 4 and f"second of {chat.number}" in request.dump()
    zones = preview(chat)["zones"]
    assert zones["total"] == zones["sent"] + zones["covered"] + zones["left_out"]
    assert zones["covered"] > 10 and zones["left_out"] == 0
    assert chat.change(tail_tokens=0)[0] == 200
    assert len(questions(chat.ask(f"fourth of {chat.number}"))) == TURNS


# Sizes


def test_stored_token_usage_of_a_small_chat_cuts_nothing(host: HostProcess) -> None:
    chat = Session(host)
    chat.seed(mixed_history(3, 200), token_usage=120_000)
    assert questions(chat.ask(f"hello of {chat.number}")) == [1, 2, 3]
    record = last_record(chat)
    assert record["left_out_turns"] == 0 and 0 < record["estimated"] < 4000
    status = chat.command("/上下文状态")[0]
    assert f"≈{record['estimated']:,}" in status and f"{record['prompt_tokens']:,}" in status


def test_a_message_larger_than_the_budget_is_sent_and_the_overrun_is_shown(chat: Session) -> None:
    text = f"huge of {chat.number}" + " a long report of everything that happened;" * 900
    size = chat.host.log_size()
    request = chat.ask(text)
    assert questions(request) == [] and text in request.dump()
    record = last_record(chat)
    assert record["estimated"] > record["budget"] == 4000
    assert record["left_out_turns"] == record["total_turns"] == TURNS
    over = record["estimated"] - record["budget"]
    assert any("over the budget" in line for line in our_lines(chat.host.log(size), "WARN"))
    assert f"{over:,}" in chat.command("/上下文状态")[0]


def test_tool_schemas_count_and_old_tool_output_is_sent_as_head_and_tail(
    host: HostProcess,
) -> None:
    chat = Session(host)
    turn = tool_turn(1)
    turn[2]["content"] = "START" + "x" * 300_000 + "END"
    chat.seed([*turn, *text_turn(2)])
    request = chat.ask(f"hello of {chat.number}")
    text = request.dump()
    assert "START" in text and "END" in text and len(text) < 20_000
    assert chat.stored[2]["content"] == turn[2]["content"]
    tools = len(json.dumps(request.body["tools"]))
    assert tools / 8 < last_record(chat)["sections"]["tools"] < tools


def test_the_status_tells_the_plugins_own_time_and_the_cached_share(chat: Session) -> None:
    chat.ask(f"hello of {chat.number} #slow:1.0")
    assert 0 < last_record(chat)["milliseconds"] < 900
    status = chat.command("/上下文状态")[0]
    assert f"1–{TURNS}" in status and "0%" in status


# Determinism


@pytest.mark.full
@pytest.mark.parametrize("version", VERSIONS)
def test_a_replay_sends_the_same_bytes_also_after_a_restart(version: str) -> None:
    config = NONE.config(version)
    sent = []
    for restarts in (False, True):
        # Of its own each: what the first run taught would size the second one's window,
        # and the model's call ids grow longer.
        with ScriptedModel() as model, closing(HostProcess(config, model).start()) as host:
            chat = Session(host)
            chat.seed(mixed_history(8, 900))
            run = []
            for number in range(24):
                if restarts and number == 12:
                    host.stop()
                    host.start()
                tool = " #tool:lookup" if number % 5 == 2 else ""
                run.append(_bare(chat.ask(f"message {number}:{' some words' * 20}{tool}")))
            sent.append(run)
    for number, (before, after) in enumerate(zip(*sent, strict=True)):
        assert before == after, number


def _bare(request: object) -> str:
    """The messages without what differs between two chats: the host's dates."""
    text = re.sub(r"<system_reminder>.*?</system_reminder>", "", request.dump())
    return re.sub(r"call_p\d+|user\d+|\b5\d{5}\b", "", text)
