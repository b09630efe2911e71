"""What is sent for a chat, and what its host stores, request after request."""

import asyncio
import json
import re

import pytest
from astrbot_plugin_context_manager import context_logic, message_text
from astrbot_plugin_context_manager.tokens import TokenCounter

from dev.host_process import HostProcess
from dev.message_rules import violations
from dev.scripted_model import RecordedRequest

from .conftest import HostPool
from .histories import comparable, mixed_history, text_turn, tool_turn
from .profiles import BARE, TRUNCATE, VERSIONS
from .sessions import Session, current_of, system_text
from .shapes import FATAL_ALONE, PICTURE, PIXEL, SHAPES, UNLOADABLE

OURS = (
    "===== ",
    context_logic.FIXED_FRAME,
    context_logic.SUMMARY_FRAME[:40],
    message_text.IMAGE_PLACEHOLDER,
    message_text.AUDIO_PLACEHOLDER,
    message_text.NO_REPLY,
    "[工具",
    "[省略",
)
KEEP_MEDIA_TURNS = 3


def numbers_sent(messages: list[dict], word: str) -> list[int]:
    """The numbers of the seeded questions or answers in a request."""
    text = "\n".join(json.dumps(m, ensure_ascii=False) for m in messages)
    return [int(number) for number in re.findall(rf"(?:\\n|\b){word} (\d+):", text)]


# Isolation and sections


def test_interleaved_chats_never_see_a_word_of_each_other(host: HostProcess) -> None:
    chats = []
    for channel in ("group", "group", "private", "private"):
        secret = f"secret{len(chats)}word"
        chat = Session(host, channel, fixed_memory=f"memo {secret}", summary=f"so far {secret}")
        history = mixed_history(30, 600)
        for message in history:
            if isinstance(message["content"], str):
                message["content"] += f" {secret}"
        chat.seed(history)
        chats.append((chat, secret))
    for turn in range(3):
        for chat, secret in chats:
            request = chat.ask(f"{secret} asks {turn} in {chat.number}")
            shown = request.dump()
            assert f"memo {secret}" in shown
            assert set(re.findall(r"secret\dword", shown)) == {secret}
    for chat, secret in chats:
        assert set(re.findall(r"secret\dword", chat.raw)) == {secret}


@pytest.mark.parametrize("channel", ["group", "web_stream"])
def test_sections_follow_the_hosts_prompt_in_order(host: HostProcess, channel: str) -> None:
    memory = "rule one\n===== AI Summary =====\nrule two"
    chat = Session(host, channel, fixed_memory=memory, summary="what happened")
    text = system_text(chat.ask(f"hello from {chat.number}"))
    lines = text.split("\n")
    fixed, summary = context_logic.FIXED_MARKER, context_logic.SUMMARY_MARKER
    assert lines.count(fixed) == 1 and lines.count(summary) == 1
    assert text.startswith("You are running in Safe Mode")
    places = [
        text.index(part) for part in (fixed, "rule one", "rule two", summary, "what happened")
    ]
    assert places == sorted(places)


def test_a_streamed_reply_leaves_no_warning_of_the_host(host: HostProcess) -> None:
    since = host.log_size()
    Session(host, "web_stream").say("hello")
    assert "pre-send event hook" not in host.log(since)


def test_empty_sections_leave_no_marker(host: HostProcess) -> None:
    chat = Session(host)
    assert "=====" not in system_text(chat.ask(f"hello from {chat.number}"))
    chat.change(summary="only a summary")
    text = system_text(chat.ask(f"again from {chat.number}"))
    assert context_logic.FIXED_MARKER not in text
    assert text.split("\n").count(context_logic.SUMMARY_MARKER) == 1


# Budget


@pytest.fixture(scope="module")
def counter() -> TokenCounter:
    """The plugin's counter with its vocabulary."""
    tokens = TokenCounter()
    asyncio.run(tokens.load())
    assert tokens.ready
    return tokens


@pytest.mark.parametrize("budget", [1024, 8000, 100_000])
@pytest.mark.parametrize("turns", [10, 200, 2000])
def test_a_request_keeps_the_budget_with_whole_turns(
    host: HostProcess, counter: TokenCounter, turns: int, budget: int
) -> None:
    chat = Session(host, fixed_memory="a rule", recent_context_token_budget=budget)
    chat.seed(mixed_history(turns, 700))
    before = host.log_size()
    for text in ("first", "second"):
        request = chat.ask(f"{text} question of {chat.number}")
        messages, tools = request.messages, request.body["tools"]
        size = counter.count_messages(messages) + counter.count_tools(tools)
        questions = numbers_sent(messages, "question")
        assert questions == list(range(turns - len(questions) + 1, turns + 1))
        assert numbers_sent(messages, "answer") == questions
        assert [m["role"] for m in messages[:2]] == ["system", "user"]
        assert request.violations == []
        if size > budget:
            assert questions == []
            assert f"over the budget of {budget}" in host.log(before)
    assert budget == 1024 or questions


def test_a_message_larger_than_the_budget_is_sent_and_reported(host: HostProcess) -> None:
    chat = Session(host, recent_context_token_budget=3000)
    chat.seed(mixed_history(10))
    before = host.log_size()
    words = f"message of {chat.number} " + "much to read " * 4000
    request = chat.ask(words.strip())
    assert [m["role"] for m in request.messages] == ["system", "user"]
    assert re.search(r"about \d+ tokens, \d+ over the budget of 3000", host.log(before))


@pytest.mark.parametrize(
    "version",
    [pytest.param(v, marks=pytest.mark.xdist_group(f"{v}-truncate")) for v in VERSIONS],
)
def test_a_stale_token_usage_cuts_nothing(hosts: HostPool, version: str) -> None:
    chat = Session(hosts.get(version, TRUNCATE))
    history = [m for n in range(1, 5) for m in text_turn(n, 120)]
    chat.seed(history, token_usage=120_000)
    request = chat.ask(f"hello from {chat.number}")
    assert numbers_sent(request.messages, "question") == [1, 2, 3, 4]
    assert chat.stored[:8] == history and len(chat.stored) == 10


# What is stored


@pytest.mark.parametrize("channel", ["private", "group", "web_stream", "web_plain"])
def test_nothing_of_the_plugin_is_stored(host: HostProcess, channel: str) -> None:
    chat = Session(host, channel, fixed_memory="memory-sentinel", summary="summary-sentinel")
    history = mixed_history(12, 600) + _picture_turn(13) + _tool_result_turn(14, "long " * 4000)
    history += [*_picture_turn(15), {"role": "user", "content": "question without an answer"}]
    chat.seed(history)
    shown = ""
    for text in ("one", f"two #tool:lookup*2 {chat.number}", "three", "four"):
        shown += chat.ask(f"{text} by {chat.number}").dump()
    for sentinel in (*OURS, "memory-sentinel", "summary-sentinel"):
        assert sentinel not in chat.raw
    assert "memory-sentinel" in shown and "[图片]" in shown and "[工具结果" in shown
    assert chat.stored[: len(history)] == history


def _picture_turn(number: int) -> list[dict]:
    parts = [
        {"type": "text", "text": f"question {number}: what is this"},
        {"type": "image_url", "image_url": {"url": PICTURE, "id": None}},
    ]
    return [
        {"role": "user", "content": parts},
        {"role": "assistant", "content": f"answer {number}: a dot"},
    ]


def _tool_result_turn(number: int, result: str) -> list[dict]:
    turn = tool_turn(number)
    turn[2]["content"] = result
    return turn


# Shapes


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_is_sent_valid_and_stored_as_before(
    host: HostProcess, hosts: HostPool, shape: str
) -> None:
    middle = mixed_history(12, 500) + SHAPES[shape] + text_turn(13)
    last = mixed_history(12, 500) + SHAPES[shape]
    for place, history in (("middle", middle), ("last", last), ("alone", SHAPES[shape])):
        chat = Session(host)
        alone = Session(hosts.get(host.config.version, BARE))
        for one in (chat, alone):
            one.seed(history)
        text = f"question about {shape} {place}"
        request = chat.ask(text)
        alone.say(text)
        assert broken_rules(request.messages) == [], place
        assert chat.stored[: len(history)] == history
        if shape not in FATAL_ALONE:
            assert comparable(chat.stored) == comparable(alone.stored), place


def test_a_history_the_host_cannot_load_stays_as_it_is(host: HostProcess) -> None:
    for bad in UNLOADABLE:
        chat = Session(host)
        history = [*text_turn(1), bad, {"role": "assistant", "content": "an answer"}]
        chat.seed(history)
        chat.say(f"hello from {chat.number}")
        assert chat.stored == history


def broken_rules(messages: list[dict]) -> list[str]:
    """Broken rules; a system message of another plugin is left where that put it."""
    return [line for line in violations(messages) if "system message not in front" not in line]


# Prefix


def test_the_sent_prefix_changes_only_when_the_window_is_cut(host: HostProcess) -> None:
    chat = Session(host, "group", recent_context_token_budget=6000, fixed_memory="a rule")
    chat.seed(mixed_history(10, 400))
    before: list[str] = []
    cuts, kept = 0, 0
    for turn in range(60):
        first_request = _prefix_turn(chat, turn)
        now = [json.dumps(m, ensure_ascii=False, sort_keys=True) for m in first_request.messages]
        if before:
            # The newest turns may still hold pictures, which get lighter once.
            stable = len(before) - 1 - 2 * KEEP_MEDIA_TURNS
            assert now[0] == before[0]
            if now[1] != before[1]:
                cuts += 1
            else:
                assert now[:stable] == before[:stable], f"turn {turn}"
                kept += 1
        before = now
    assert 2 <= cuts <= 12
    assert kept >= 45


def _prefix_turn(chat: Session, turn: int) -> RecordedRequest:
    text = f"turn {turn} of {chat.number}: {'a few words to read ' * 6}"
    if turn % 4 == 1:
        text += " #tool:lookup*2"
    already, recorded = len(chat.replies()), len(chat.host.model.requests())
    image = {"type": "image", "data": {"file": f"base64://{PIXEL}"}}
    chat.host.qq.send_group(
        chat.number, chat.number, text, segments=[image] if turn % 3 == 0 else None
    )
    chat.host.qq.wait_reply(chat.target, already)
    chat.finish()
    new = chat.host.model.requests()[recorded:]
    return next(r for r in new if text[:20] in str(current_of(r.messages)))


# Personas and the WebUI's own records


def test_begin_dialogs_are_sent_once_and_never_stored(host: HostProcess) -> None:
    persona = f"persona-{host.port}"
    dialogs = ["begin-dialog question", "begin-dialog answer"]
    body = {"persona_id": persona, "system_prompt": "Be brief.", "begin_dialogs": dialogs}
    host.web.post("/api/persona/create", body)
    chat = Session(host, recent_context_token_budget=4000)
    chat.conversation_id = host.store.seed(chat.origin, mixed_history(20, 700), persona_id=persona)
    for turn in range(3):
        request = chat.ask(f"turn {turn} of {chat.number}")
        assert [m["content"] for m in request.messages[1:3]] == dialogs
        assert request.dump().count("begin-dialog question") == 1
        assert request.violations == []
    assert "begin-dialog" not in chat.raw
    assert len(numbers_sent(chat.stored, "question")) == 20


def test_the_webui_can_edit_and_regenerate_after_cut_requests(host: HostProcess) -> None:
    chat = Session(host, "web_plain")
    history = mixed_history(20, 1000)
    chat.seed(history)
    for turn in range(2):
        request = chat.ask(f"turn {turn} of {chat.number}")
        assert len(numbers_sent(request.messages, "question")) < 20
    records = host.web.get("/api/chat/get_session", session_id=chat.web_session)["history"]
    user = records[-2]
    host.web.post(
        "/api/chat/message/edit",
        {
            "session_id": chat.web_session,
            "message_id": user["id"],
            "content": {"type": "user", "message": [{"type": "plain", "text": "edited turn"}]},
        },
    )
    assert chat.stored[: len(history)] == history
    assert "turn 1 of" not in chat.raw and "turn 0 of" in chat.raw
    chat.say("after the edit")
    assert chat.stored[: len(history)] == history
    bot = host.web.get("/api/chat/get_session", session_id=chat.web_session)["history"][-1]
    host.web.regenerate(chat.web_session, bot["id"])
    chat.finish()
    assert chat.stored[: len(history)] == history
    assert sum("after the edit" in str(m) for m in chat.stored) == 1
