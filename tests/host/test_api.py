"""The page's routes and the compress command, on real hosts."""

import json
import uuid
from collections.abc import Callable

import httpx
import pytest
from astrbot_plugin_context_manager.context_logic import FIXED_MARKER

from dev.host_process import PASSWORD, HostProcess
from dev.script import Reply, kind_of
from dev.webui import PLUGIN

from .histories import mixed_history
from .sessions import Session, wait_until

COLUMNS = {
    "session_id",
    "display_name",
    "platform",
    "fixed_memory",
    "summary",
    "compress_prompt",
    "recent_context_token_budget",
    "summary_target_tokens",
    "last_seen_at",
    "updated_at",
}
HISTORY = mixed_history(6)
MESSAGES = len([m for m in HISTORY if m["role"] != "_checkpoint"])
UNKNOWN = "qq:GroupMessage:nobody"


@pytest.fixture
def chat(host: HostProcess) -> Session:
    """A private chat that has asked the model once."""
    chat = Session(host)
    chat.seed(HISTORY)
    chat.ask(f"hello from {chat.number}")
    return chat


# Good calls


def test_a_chat_appears_with_name_and_platform(host: HostProcess, chat: Session) -> None:
    row = chat.row()
    assert row.keys() == COLUMNS | {"revision", "kind", "options", "coverage"}
    assert (row["display_name"], row["platform"]) == (f"user{chat.number}", "qq")
    assert (row["kind"], row["recent_context_token_budget"]) == ("private", 4000)
    assert row["coverage"]["conversation_id"] == chat.conversation_id
    assert row["coverage"]["total"] == MESSAGES + 2
    status, found = host.web.api("GET", "sessions", q=f"user{chat.number}", kind="private")
    assert status == 200 and found.keys() == {"items", "total", "platforms"}
    assert [item["session_id"] for item in found["items"]] == [chat.origin]
    assert host.web.api("GET", "sessions", q=chat.origin, platform="webchat")[1]["total"] == 0


def test_a_saved_change_is_sent_with_the_next_request(chat: Session) -> None:
    before = chat.row()
    status, row = chat.change(fixed_memory="new rule", recent_context_token_budget=1_000_000)
    assert status == 200
    assert (row["fixed_memory"], row["recent_context_token_budget"]) == ("new rule", 1_000_000)
    assert row["revision"] != before["revision"]
    assert "new rule" in chat.ask(f"again from {chat.number}").dump()
    assert chat.row()["revision"] == row["revision"]


def test_values_for_all_chats_also_become_the_default(host: HostProcess, chat: Session) -> None:
    chat.change(recent_context_token_budget=9000)
    changes = {"recent_context_token_budget": 4000, "summary_target_tokens": 1600}
    status, answer = host.web.api("POST", "sessions/apply", {"changes": changes})
    assert status == 200 and answer["updated"] >= 1
    newer = Session(host)
    newer.ask(f"hello from {newer.number}")
    for row in (chat.row(), newer.row()):
        assert {name: row[name] for name in changes} == changes


def test_health_names_versions_and_state(host: HostProcess) -> None:
    status, health = host.web.api("GET", "health")
    assert status == 200
    assert health["host_version"] == host.config.version
    assert health["database"] == "ok"
    assert health["warnings"] == []


# Bad calls

BAD_CALLS = [
    ("GET", "session", None, {}, "session_id"),
    ("GET", "session", None, {"session_id": ""}, "session_id"),
    ("GET", "session", None, {"session_id": "ID", "more": "1"}, "more"),
    ("GET", "sessions", None, {"limit": "0"}, "limit"),
    ("GET", "sessions", None, {"limit": "201"}, "limit"),
    ("GET", "sessions", None, {"limit": "many"}, "limit"),
    ("GET", "sessions", None, {"offset": "-1"}, "offset"),
    ("GET", "sessions", None, {"kind": "channel"}, "kind"),
    ("GET", "sessions", None, {"page": "2"}, "page"),
    ("GET", "health", None, {"verbose": "1"}, "verbose"),
    ("POST", "session", {}, {}, "session_id"),
    ("POST", "session", [1], {}, "body"),
    ("POST", "session", {"session_id": 5, "revision": "1", "changes": {}}, {}, "session_id"),
    ("POST", "session/compress", {"session_id": "ID", "focus": 7}, {}, "focus"),
    ("POST", "session/compress", {"session_id": "ID", "force": True}, {}, "force"),
    ("POST", "sessions/apply", {"changes": {}}, {}, "changes"),
    ("POST", "sessions/apply", {"changes": {"fixed_memory": "x"}}, {}, "changes.fixed_memory"),
]


@pytest.mark.parametrize(("method", "route", "body", "params", "field"), BAD_CALLS)
def test_bad_input_is_refused_with_the_fields_name(
    host: HostProcess, method: str, route: str, body: object, params: dict, field: str
) -> None:
    status, answer = host.web.api(method, route, body, **params)
    assert status == 400, answer
    assert answer["message"].startswith(f"{field}: ")
    assert answer["data"]["field"] == field


BAD_CHANGES = [
    {"recent_context_token_budget": 1023},
    {"recent_context_token_budget": 1_000_001},
    {"recent_context_token_budget": "4000"},
    {"recent_context_token_budget": 4000.5},
    {"recent_context_token_budget": True},
    {"recent_context_token_budget": None},
    {"summary_target_tokens": 0},
    {"fixed_memory": 7},
    {"fixed_memory": ["x"]},
    {"fixed_memory": "x" * 5_000_000},
    {"compress_prompt": "x" * 20_001},
    {"display_name": "x"},
    {"session_id": "x"},
]


@pytest.mark.parametrize("changes", BAD_CHANGES, ids=lambda c: f"{c!r:.50}")
def test_a_bad_value_changes_nothing(host: HostProcess, changes: dict) -> None:
    chat = Session(host, fixed_memory="stays")
    before = chat.row()
    status, answer = chat.change(summary="good value", **changes)
    (name,) = changes
    assert status == 400
    assert answer["message"].startswith(f"changes.{name}: ") and len(answer["message"]) < 300
    assert answer["data"]["field"] == f"changes.{name}"
    assert chat.row() == before


@pytest.mark.parametrize(
    ("method", "route"),
    [
        ("GET", "session"),
        ("POST", "session"),
        ("GET", "session/compress"),
        ("POST", "session/compress"),
        ("POST", "session/compress/cancel"),
        ("GET", "session/prompt"),
    ],
)
def test_an_unknown_session_is_not_found(host: HostProcess, method: str, route: str) -> None:
    body: dict = {"session_id": UNKNOWN}
    if route == "session":
        body |= {"revision": "1", "changes": {"summary": "x"}}
    call = {"session_id": UNKNOWN} if method == "GET" else {}
    status, answer = host.web.api(method, route, None if call else body, **call)
    assert status == 404 and UNKNOWN in answer["message"]
    assert host.web.api("GET", "sessions", q=UNKNOWN)[1]["total"] == 0


def test_a_stale_revision_gets_the_current_row(host: HostProcess) -> None:
    chat = Session(host, fixed_memory="")
    stale = chat.row()["revision"]
    chat.change(fixed_memory="somebody else's")
    body = {"session_id": chat.origin, "revision": stale, "changes": {"fixed_memory": "mine"}}
    status, answer = host.web.api("POST", "session", body)
    assert status == 409
    assert answer["data"]["fixed_memory"] == "somebody else's"
    assert chat.row()["fixed_memory"] == "somebody else's"


def test_lone_surrogates_are_replaced_where_they_enter(host: HostProcess) -> None:
    chat = Session(host, fixed_memory="")
    status, row = chat.change(fixed_memory="half \ud83d emoji", summary="\ude00")
    assert status == 200
    assert (row["fixed_memory"], row["summary"]) == ("half \ufffd emoji", "\ufffd")
    assert chat.ask(f"hello from {chat.number}").violations == []


def test_a_body_that_is_no_json_is_refused(host: HostProcess) -> None:
    answer = _raw_call(host, "POST", "session", b"{not json", logged_in=True)
    assert answer.status_code == 400
    assert answer.json()["data"]["field"] == "body"


def test_nobody_gets_in_without_a_login(host: HostProcess) -> None:
    for method, route in (("GET", "sessions"), ("POST", "session"), ("GET", "health")):
        assert _raw_call(host, method, route, b"{}", logged_in=False).status_code == 401


def _raw_call(
    host: HostProcess, method: str, route: str, body: bytes, logged_in: bool
) -> httpx.Response:
    headers = {"Content-Type": "application/json"}
    if logged_in:
        credentials = {"username": host.web.username, "password": PASSWORD}
        login = httpx.post(f"{host.web.url}/api/auth/login", json=credentials, trust_env=False)
        token = login.json()["data"].get("token") or login.cookies["astrbot_dashboard_jwt"]
        headers["Authorization"] = f"Bearer {token}"
    url = f"{host.web.url}/api/v1/plugins/extensions/{PLUGIN}/{route}"
    return httpx.request(method, url, content=body, headers=headers, trust_env=False)


def test_a_switched_off_plugin_answers_503_until_it_is_back(host: HostProcess) -> None:
    chat = Session(host, fixed_memory="kept")
    host.web.switch_plugin(False)
    try:
        for method, route in (("GET", "sessions"), ("GET", "health"), ("POST", "session")):
            status, answer = host.web.api(method, route, {} if method == "POST" else None)
            assert status == 503 and "off" in answer["message"]
    finally:
        host.web.switch_plugin(True)
    assert chat.row()["fixed_memory"] == "kept"


# Compression


def _compressed(chat: Session, **more: object) -> dict:
    """Starts a compression by the page and waits for its end."""
    body = {"session_id": chat.origin, **more}
    status, job = chat.host.web.api("POST", "session/compress", body)
    assert status == 200, job
    wait_until(lambda: _job(chat)["state"] != "running", "the compression")
    return _job(chat)


def _job(chat: Session) -> dict:
    status, job = chat.host.web.api("GET", "session/compress", session_id=chat.origin)
    assert status == 200
    return job


def _answer_with(host: HostProcess, mark: str, reply: Reply) -> Callable[[], None]:
    """Answers compressions whose prompt holds a mark."""

    def script(body: dict) -> Reply | None:
        ours = kind_of(body) == "plain" and mark in json.dumps(body, ensure_ascii=False)
        return reply if ours else None

    return host.model.add_script(script)


def test_a_chat_that_never_asked_can_be_compressed(host: HostProcess) -> None:
    chat = Session(host)
    chat.seed(HISTORY)
    focus = f"focus-{uuid.uuid4().hex}"
    job = _compressed(chat, focus=focus)
    assert (job["state"], job["covered"]) == ("done", MESSAGES), job
    assert job["tokens_before"] > job["tokens_after"] > 0
    assert job["usage"]["input"] > 0 and job["version_id"]
    row = chat.row()
    assert row["summary"] == "A short summary."
    coverage = row["coverage"]
    assert (coverage["messages"], coverage["total"]) == (MESSAGES, MESSAGES)
    assert not coverage["out_of_date"]
    request = host.model.requests(focus, "plain")[0]
    assert request.violations == []
    assert "question 1:" in request.dump() and "checkpoint-" not in request.dump()
    assert chat.stored == HISTORY


def test_fixed_memory_never_reaches_the_summarising_model(host: HostProcess) -> None:
    chat = Session(host, fixed_memory="hush-hush", summary="older summary")
    chat.seed(HISTORY)
    focus = f"focus-{uuid.uuid4().hex}"
    _compressed(chat, focus=focus)
    shown = host.model.requests(focus, "plain")[0].dump()
    assert "older summary" in shown
    assert "hush-hush" not in shown and FIXED_MARKER not in shown
    assert chat.row()["fixed_memory"] == "hush-hush"


@pytest.mark.parametrize(
    "reply",
    [
        Reply(""),
        Reply("  \n "),
        Reply("<think>only a thought</think>"),
        Reply("<think>never closed"),
        Reply("", reasoning="elsewhere"),
        Reply("no more quota", status=400),
    ],
    ids=["nothing", "blank", "thought", "open thought", "reasoning", "error"],
)
def test_a_useless_answer_leaves_the_summary(host: HostProcess, reply: Reply) -> None:
    chat = Session(host, summary="older summary")
    chat.seed(HISTORY)
    focus = f"focus-{uuid.uuid4().hex}"
    remove = _answer_with(host, focus, reply)
    before = chat.row()
    job = _compressed(chat, focus=focus)
    remove()
    assert job["state"] == "failed" and job["message"]
    assert job["version_id"] is None
    assert chat.row() == before


def test_an_empty_chat_is_not_sent_to_the_model(host: HostProcess) -> None:
    chat = Session(host, summary="older summary")
    chat.seed([])
    before = len(host.model.requests(kind="plain"))
    job = _compressed(chat)
    assert job["state"] == "failed" and "没有调用模型" in job["message"]
    assert len(host.model.requests(kind="plain")) == before


def test_an_edit_during_a_compression_wins(host: HostProcess) -> None:
    chat = Session(host, summary="older summary")
    chat.seed(HISTORY)
    focus = f"focus-{uuid.uuid4().hex}"
    gate = host.model.gate(focus)
    remove = _answer_with(host, focus, Reply("the model's summary", gate=gate))
    body = {"session_id": chat.origin, "focus": focus}
    assert host.web.api("POST", "session/compress", body)[1]["state"] == "running"
    gate.wait_entered()
    chat.change(summary="the user's edit")
    # A second start only gets the running job.
    assert host.web.api("POST", "session/compress", body)[1]["state"] == "running"
    gate.release()
    wait_until(lambda: _job(chat)["state"] != "running", "the compression")
    remove()
    assert _job(chat)["state"] == "conflict"
    assert chat.row()["summary"] == "the user's edit"
    assert len(host.model.requests(focus, "plain")) == 1


def test_a_cancelled_compression_changes_nothing(host: HostProcess) -> None:
    chat = Session(host, summary="older summary")
    chat.seed(HISTORY)
    focus = f"focus-{uuid.uuid4().hex}"
    gate = host.model.gate(focus)
    remove = _answer_with(host, focus, Reply("too late", gate=gate))
    host.web.api("POST", "session/compress", {"session_id": chat.origin, "focus": focus})
    gate.wait_entered()
    status, job = host.web.api("POST", "session/compress/cancel", {"session_id": chat.origin})
    gate.release()
    remove()
    assert (status, job["state"]) == (200, "cancelled")
    assert chat.row()["summary"] == "older summary"


# The command


@pytest.mark.parametrize("channel", ["private", "web_stream", "web_plain"])
@pytest.mark.parametrize("name", ["立即压缩", "context_compress", "compress_context"])
def test_the_command_reports_start_and_end(host: HostProcess, channel: str, name: str) -> None:
    chat = Session(host, channel)
    chat.seed(HISTORY)
    focus = f"数字 和\n日期 {uuid.uuid4().hex}"
    text = "\n".join(chat.command(f"/{name} {focus}"))
    assert "开始压缩" in text and f"{MESSAGES} 条消息" in text
    assert chat.row()["summary"] == "A short summary."
    assert focus.split()[-1] in host.model.requests(focus.split()[-1], "plain")[0].dump()
    assert chat.stored == HISTORY


def test_a_group_member_may_not_compress_but_its_admins_may(host: HostProcess) -> None:
    chat = Session(host, "group")
    chat.seed(HISTORY)
    before = len(host.model.requests(kind="plain"))
    refused = chat.command("/立即压缩 重点", sender=chat.number, role="member")
    assert len(refused) == 1 and "只对" in refused[0]
    assert len(host.model.requests(kind="plain")) == before
    for role in ("admin", "owner"):
        allowed = chat.command("/立即压缩 重建 重点", sender=chat.number, role=role)
        assert len(allowed) == 2 and f"{MESSAGES} 条消息" in allowed[1]
    assert len(chat.command("/立即压缩 重建")) == 2
