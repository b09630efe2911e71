"""The page's calls in real hosts: versions, requests, preview, export and import."""

import json
import time
from collections.abc import Callable

import httpx
import pytest

from dev.host_process import HostProcess
from dev.script import Reply

from .conftest import HostPool
from .histories import mixed_history
from .paths import Chat
from .profiles import NONE, VERSIONS

ROUTES = (
    ("GET", "sessions"),
    ("GET", "session"),
    ("POST", "session"),
    ("POST", "sessions/apply"),
    ("GET", "session/versions"),
    ("POST", "session/restore"),
    ("GET", "session/compress"),
    ("POST", "session/compress"),
    ("POST", "session/compress/cancel"),
    ("GET", "session/prompt"),
    ("GET", "session/requests"),
    ("GET", "session/preview"),
    ("GET", "export"),
    ("POST", "import"),
    ("POST", "import/preview"),
    ("GET", "health"),
)
USAGE = {
    "prompt_tokens": 900,
    "completion_tokens": 20,
    "total_tokens": 920,
    "prompt_tokens_details": {"cached_tokens": 640},
}
HOSTILE = '"><img src=x onerror=alert(1)></textarea><script>alert(1)</script>\u202e'


def call(chat: Chat, route: str, body: dict | None = None, **params: object) -> dict:
    method = "GET" if body is None else "POST"
    named = {"session_id": chat.origin}
    if body is None:
        params = named | params
    else:
        body = named | body
    status, answer = chat.host.web.api(method, route, body, **params)
    assert status == 200, answer
    assert not {"status", "data"} & answer.keys()
    return answer


def wait_for(look: Callable[[], object], timeout: float = 10.0) -> object:
    deadline = time.monotonic() + timeout
    while not (found := look()):
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.02)
    return found


def requests_of(chat: Chat, count: int) -> list[dict]:
    def enough() -> list[dict]:
        items = call(chat, "session/requests")["items"]
        return items if len(items) >= count else []

    return wait_for(enough)


def save(chat: Chat, **changes: object) -> dict:
    revision = call(chat, "session")["revision"]
    return call(chat, "session", {"revision": revision, "changes": changes})


@pytest.fixture
def chat(host: HostProcess) -> Chat:
    """A group that was answered once."""
    chat = Chat(host, "group")
    chat.seed(mixed_history(6))
    chat.say("hello")
    return chat


def test_versions_are_listed_and_one_is_restored(chat: Chat) -> None:
    save(chat, summary="first")
    row = save(chat, summary="second")
    versions = call(chat, "session/versions", limit=10)
    assert [v["text"] for v in versions["items"]] == ["second", "first"]
    assert versions["total"] == 2 and versions["items"][0]["source"] == "user"
    old = versions["items"][1]["id"]
    restored = call(chat, "session/restore", {"version_id": old, "revision": row["revision"]})
    assert restored["summary"] == "first" and restored["revision"] != row["revision"]
    assert call(chat, "session/versions")["total"] == 3


def test_a_restore_with_a_stale_revision_changes_nothing(chat: Chat) -> None:
    stale = save(chat, summary="first")["revision"]
    save(chat, summary="second")
    old = call(chat, "session/versions")["items"][-1]["id"]
    body = {"session_id": chat.origin, "version_id": old, "revision": stale}
    status, answer = chat.host.web.api("POST", "session/restore", body)
    assert status == 409 and answer["data"]["summary"] == "second"
    body["version_id"] = 10**9
    body["revision"] = answer["data"]["revision"]
    status, answer = chat.host.web.api("POST", "session/restore", body)
    assert (status, answer["data"]) == (400, {"field": "version_id"})


@pytest.mark.parametrize("channel", ["private", "web_stream"])
def test_a_request_is_recorded_with_what_the_provider_reported(
    host: HostProcess, channel: str
) -> None:
    chat = Chat(host, channel)
    chat.seed(mixed_history(2))
    remove = host.model.add_script(
        lambda body: Reply("fine", usage=USAGE) if "count me" in json.dumps(body) else None
    )
    try:
        chat.say("count me")
    finally:
        remove()
    item = requests_of(chat, 1)[0]
    assert (item["prompt_tokens"], item["cached_tokens"], item["output_tokens"]) == (900, 640, 20)
    assert item["estimated"] == sum(item["sections"].values()) > 0
    assert item["model"].startswith("scripted") and item["milliseconds"] > 0
    assert (item["first_turn"], item["left_out_turns"]) == (0, 0)
    assert abs(item["time"] - time.time()) < 60


def test_unreported_usage_and_failed_requests_are_null(host: HostProcess) -> None:
    chat = Chat(host, "private")
    remove = host.model.add_script(
        lambda body: Reply("fine", usage=None) if "say no number" in json.dumps(body) else None
    )
    try:
        chat.say("say no number")
    finally:
        remove()
    assert requests_of(chat, 1)[0]["prompt_tokens"] is None
    chat.say("now fail #error")
    assert [item["prompt_tokens"] for item in requests_of(chat, 2)] == [None, None]


def test_what_tools_added_is_a_section_of_its_own(host: HostProcess) -> None:
    chat = Chat(host, "private")
    chat.say("look it up #tool:lookup_much*2")
    item = requests_of(chat, 1)[0]
    assert item["sections"]["tool_steps"] > 200 and item["sections"]["tools"] > 0


def test_the_preview_is_what_the_next_request_sends(host: HostProcess) -> None:
    chat = Chat(host, "group")
    chat.seed(mixed_history(40, 1000))
    chat.say("hello")
    save(chat, fixed_memory="always be brief", summary="they met in spring")
    last = requests_of(chat, 1)[0]
    mark = call(chat, "session/preview")
    seen = call(chat, "session/preview")
    assert seen == mark
    host.model.clear()
    chat.say("the next message")
    sent = host.model.requests(containing="the next message", kind="chat")[0].messages[:-1]
    assert [(m["role"], m["text"]) for m in seen["messages"]] == [
        (m["role"], _text(m)) for m in sent
    ]
    item = requests_of(chat, 2)[0]
    assert seen["first_turn"] == item["first_turn"] > 0
    assert seen["left_out"]["turns"] == item["left_out_turns"]
    assert seen["left_out"]["reason"] == "budget" and seen["left_out"]["tokens"] > 1000
    sizes = {s["name"]: s["tokens"] for s in seen["sections"]}
    for name in ("fixed_memory", "summary", "window"):
        assert sizes[name] == item["sections"][name], name
    # System prompt and tools are shown as of the last request.
    for name in ("system", "tools"):
        assert sizes[name] == last["sections"][name], name
    assert seen["budget"] == 4000 and seen["as_of"]


def _text(message: dict) -> str:
    content = message["content"]
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if part.get("text"))


def test_a_chat_of_5000_messages_is_previewed_quickly(host: HostProcess) -> None:
    chat = Chat(host, "private")
    chat.say("hello")
    host.store.overwrite(
        host.store.conversations(chat.origin)[-1].conversation_id, mixed_history(2000), 0
    )
    save(chat, recent_context_token_budget=100_000)
    began = time.monotonic()
    preview = call(chat, "session/preview")
    assert len(preview["messages"]) > 500
    assert time.monotonic() - began < 5


def test_the_prompt_is_rendered_with_the_chat(chat: Chat) -> None:
    answer = call(chat, "session/prompt")
    assert "question 1:" in answer["prompt"] and answer["default"] is True
    save(chat, compress_prompt="Short: {{ messages }} {{ nothing( }}")
    answer = call(chat, "session/prompt")
    assert answer["prompt"] == "" and answer["message"] and answer["default"] is False


def test_one_session_is_exported_with_its_history_and_imported_again(chat: Chat) -> None:
    save(chat, fixed_memory=HOSTILE, summary="first")
    answer = chat.host.web.download("export", session_id=chat.origin, format="json")
    assert answer.status_code == 200 and "attachment" in answer.headers["content-disposition"]
    (session,) = answer.json()["sessions"]
    assert (session["session_id"], session["fixed_memory"]) == (chat.origin, HOSTILE)
    assert "question 1:" in json.dumps(session["conversation"]["messages"])
    save(chat, fixed_memory="changed", summary="changed")
    wanted = {"fixed_memory": ("changed", HOSTILE), "summary": ("changed", "first")}
    for route in ("import/preview", "import"):
        status, done = chat.host.web.upload(route, answer.content)
        assert status == 200 and done["applied"] is (route == "import")
        assert {c["field"]: (c["before"], c["after"]) for c in done["changes"]} == wanted
    row = call(chat, "session")
    assert (row["fixed_memory"], row["summary"]) == (HOSTILE, "first")
    assert chat.host.web.upload("import", answer.content, dry_run="true")[1] == {
        "changes": [],
        "applied": False,
    }


def test_everything_is_exported_for_people_too(chat: Chat) -> None:
    save(chat, summary="they met in spring")
    everything = chat.host.web.download("export").json()["sessions"]
    assert chat.origin in [session["session_id"] for session in everything]
    answer = chat.host.web.download("export", session_id=chat.origin, format="markdown")
    assert answer.headers["content-type"].startswith("text/markdown")
    assert "they met in spring" in answer.text and "question 1:" in answer.text


@pytest.mark.parametrize(
    ("content", "field"),
    [
        (b"no json", "file"),
        (b'{"format": "other"}', "format"),
        (b'{"format": "astrbot_plugin_context_manager", "version": 9}', "version"),
        (
            b'{"format": "astrbot_plugin_context_manager", "version": 1, "sessions":'
            b' [{"session_id": "new-one", "summary": "x"}, {"session_id": "b", "summary": 5}]}',
            "sessions.1.summary",
        ),
    ],
)
def test_a_bad_file_is_refused_whole(host: HostProcess, content: bytes, field: str) -> None:
    status, answer = host.web.upload("import", content)
    assert (status, answer["data"]) == (400, {"field": field})
    assert host.web.api("GET", "session", session_id="new-one")[0] == 404


def test_bad_input_is_a_400_that_names_the_field(chat: Chat) -> None:
    web, named = chat.host.web, {"session_id": chat.origin}
    for route, params, field in (
        ("session/versions", named | {"limit": 0}, "limit"),
        ("session/versions", named | {"more": 1}, "more"),
        ("session/requests", {}, "session_id"),
        ("session/requests", named | {"limit": "x"}, "limit"),
        ("session/preview", {}, "session_id"),
        ("export", {"format": "pdf"}, "format"),
    ):
        status, answer = web.api("GET", route, **params)
        assert (status, answer["data"]) == (400, {"field": field}), route
    for route in ("session/versions", "session/requests", "session/preview", "export"):
        assert web.api("GET", route, session_id="nobody")[0] == 404, route
    assert web.upload("import", b"{}", dry_run="perhaps")[1]["data"] == {"field": "dry_run"}
    status, answer = web.api("POST", "import", {"file": "x"})
    assert (status, answer["data"]) == (400, {"field": "file"})


def test_no_call_answers_without_the_login(host: HostProcess) -> None:
    for method, route in ROUTES:
        path = f"/api/v1/plugins/extensions/astrbot_plugin_context_manager/{route}"
        answer = httpx.request(method, host.web.url + path, trust_env=False)
        assert answer.status_code in (401, 403), route


@pytest.mark.parametrize("version", VERSIONS)
def test_a_switched_off_plugin_answers_503(hosts: HostPool, version: str) -> None:
    host = hosts.get(version, NONE)
    host.web.switch_plugin(False)
    try:
        for method, route in ROUTES:
            body = {} if method == "POST" else None
            assert host.web.api(method, route, body)[0] == 503, route
    finally:
        host.web.switch_plugin(True)


def test_the_head_of_the_last_request_survives_a_reload_by_its_sizes(chat: Chat) -> None:
    requests_of(chat, 1)
    before = call(chat, "session/preview")
    chat.host.web.reload_plugin()
    after = call(chat, "session/preview")
    for name in ("system", "tools", "begin_dialogs"):
        assert _size(after, name) == _size(before, name)
    assert _size(after, "system") > 0 and after["as_of"] == before["as_of"]


def _size(preview: dict, name: str) -> int:
    return next(s["tokens"] for s in preview["sections"] if s["name"] == name)
