"""The page's border: what comes in is checked, what goes wrong has its status."""

import json
import time
from types import SimpleNamespace

import pytest
from astrbot.api.web import PluginRequest, bind_request_context
from astrbot_plugin_context_manager.compression import Compressor
from astrbot_plugin_context_manager.errors import StorageUnavailable
from astrbot_plugin_context_manager.request_flow import RequestFlow
from astrbot_plugin_context_manager.request_log import RequestLog
from astrbot_plugin_context_manager.settings import Settings
from astrbot_plugin_context_manager.storage import Storage
from astrbot_plugin_context_manager.texts import Texts
from astrbot_plugin_context_manager.tokens import TokenCounter
from astrbot_plugin_context_manager.watermark import prefix_hash
from astrbot_plugin_context_manager.web import MAX_BODY, PLUGIN_NAME, register_routes
from starlette.requests import Request

GROUP = "qq:GroupMessage:100"
HISTORY = [
    {"role": "user", "content": "q1"},
    {"role": "assistant", "content": "a1"},
    {"role": "_checkpoint", "id": "x"},
    {"role": "user", "content": "q2"},
]


class FakeHost:
    """A host with one conversation."""

    version = "0"

    def __init__(self):
        self.history = ("c", HISTORY)

    async def load_history(self, session_id):
        return self.history

    async def current_chat_provider(self, session_id):
        return None

    async def persona(self, session_id, conversation_id):
        return ""

    async def session_exists(self, session_id):
        return session_id.startswith("known:")

    def settings_warnings(self):
        return []


class Page:
    """Calls the registered routes as the host does."""

    def __init__(self, plugin):
        self.plugin = plugin
        self._routes = {}
        register_routes(self, plugin)

    def register_web_api(self, route, handler, methods, description):
        self._routes[route, methods[0]] = handler

    async def get(self, path, **query):
        text = "&".join(f"{name}={value}" for name, value in query.items())
        return await self._call("GET", path, text, b"")

    async def post(self, path, body):
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self._call("POST", path, "", raw)

    async def _call(self, method, path, query, body):
        async def receive():
            return {"type": "http.request", "body": body, "more_body": False}

        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": query.encode(),
            "headers": [(b"content-length", str(len(body)).encode())],
        }
        with bind_request_context(PluginRequest(Request(scope, receive))):
            answer = await self._routes[f"/{PLUGIN_NAME}/{path}", method]()
        return answer.status_code, json.loads(answer.body)


@pytest.fixture
async def page(tmp_path):
    storage = await Storage.open(tmp_path / "context_manager.db", Settings())
    await storage.see_session(GROUP, "群", "qq", 100)
    host, tokens = FakeHost(), TokenCounter()
    plugin = SimpleNamespace(
        storage=storage,
        compressor=Compressor(storage, host, tokens, Settings()),
        host=host,
        tokens=tokens,
        texts=Texts("en-US"),
        settings=Settings(),
        setting_problems=[],
        shelf=None,
        memory=None,
        flow=RequestFlow(
            host, tokens, Settings(), storage, time.time, RequestLog(storage.database)
        ),
        version="0",
        closed=False,
    )
    yield Page(plugin)
    await storage.close()


async def change(page, **changes):
    row = (await page.get("session", session_id=GROUP))[1]
    body = {"session_id": GROUP, "revision": row["revision"], "changes": changes}
    return await page.post("session", body)


async def test_a_change_comes_back_with_the_new_revision(page):
    before = (await page.get("session", session_id=GROUP))[1]
    status, row = await change(page, fixed_memory="half \ud83d", summary_target_tokens=100)
    assert (status, row["fixed_memory"], row["summary_target_tokens"]) == (200, "half \ufffd", 100)
    assert row["revision"] != before["revision"]
    assert (await page.get("session", session_id=GROUP))[1] == row


@pytest.mark.parametrize(
    "body",
    [b"[]", b"null", b"{", b"\xff", b'"x"', b"[" * 100_000, b'{"session_id":' + b"9" * 5000 + b"}"],
)
async def test_a_body_that_is_no_object_is_refused(page, body):
    status, answer = await page.post("session", body)
    assert status == 400 and answer["data"]["field"]


async def test_a_body_beyond_every_valid_one_is_refused_unread(page):
    status, answer = await page.post("session", b" " * (MAX_BODY + 1))
    assert (status, answer["data"]["field"]) == (400, "body")


async def test_a_template_that_cannot_be_rendered_says_so_in_the_prompt(page):
    for template, broken in (("{{ nothing.here", True), ("Mine: {{ messages }}", False)):
        await change(page, compress_prompt=template)
        answer = (await page.get("session/prompt", session_id=GROUP))[1]
        assert (answer["template"], bool(answer["message"])) == (template, broken)
    await change(page, compress_prompt="")
    answer = (await page.get("session/prompt", session_id=GROUP))[1]
    assert answer["default"] and "q1" in answer["prompt"]


async def test_a_stale_revision_gets_the_current_row(page):
    await change(page, summary="theirs")
    body = {"session_id": GROUP, "revision": "1", "changes": {"summary": "mine"}}
    status, answer = await page.post("session", body)
    assert (status, answer["data"]["summary"]) == (409, "theirs")


async def test_a_database_that_fails_is_a_503_also_after_a_stale_revision(page, monkeypatch):
    async def fail(session_id):
        raise StorageUnavailable("gone")

    await change(page, summary="theirs")
    monkeypatch.setattr(page.plugin.storage, "latest_coverage", fail)
    body = {"session_id": GROUP, "revision": "1", "changes": {"summary": "mine"}}
    assert (await page.post("session", body))[0] == 503
    page.plugin.storage = None
    assert (await page.get("sessions"))[0] == 503
    assert (await page.get("health"))[1]["database"] != "ok"


async def test_a_switched_off_plugin_answers_nothing_else(page):
    page.plugin.closed = True
    for path in ("sessions", "session", "health"):
        assert (await page.get(path))[0] == 503


async def test_a_plugin_that_is_still_starting_is_a_503(page):
    page.plugin.compressor = None
    answers = [
        await page.get(f"session/{path}", session_id=GROUP) for path in ("compress", "prompt")
    ]
    for path in ("compress", "compress/cancel"):
        answers.append(await page.post(f"session/{path}", {"session_id": GROUP}))
    assert [status for status, _ in answers] == [503] * 4


async def test_an_unexpected_error_is_logged_once_with_its_session(page, monkeypatch, caplog):
    async def fail(session_id):
        raise RuntimeError("surprise")

    monkeypatch.setattr(page.plugin.host, "load_history", fail)
    status, answer = await page.get("session", session_id=GROUP)
    assert status == 500 and answer["message"]
    [record] = [r for r in caplog.records if r.levelname == "ERROR"]
    assert GROUP in record.getMessage()


async def test_coverage_says_what_the_summary_stands_for(page):
    await page.plugin.storage.commit_summary(
        GROUP,
        "sum",
        base_summary="",
        model="m",
        conversation_id="c",
        covered=2,
        prefix_hash=prefix_hash(HISTORY[:3]),
        tokens=1,
        source="model",
        now=200,
    )
    coverage = (await page.get("session", session_id=GROUP))[1]["coverage"]
    assert coverage == {
        "conversation_id": "c",
        "messages": 2,
        "total": 3,
        "out_of_date": False,
        "model": "m",
        "created_at": 200,
    }
    for changed in (("c", HISTORY[1:]), ("c", HISTORY[:1]), ("other", HISTORY), (None, [])):
        page.plugin.host.history = changed
        coverage = (await page.get("session", session_id=GROUP))[1]["coverage"]
        assert (coverage["messages"], coverage["out_of_date"]) == (0, True)


async def test_a_session_known_only_to_the_host_gets_its_row_when_it_is_compressed(page):
    known = "known:GroupMessage:1"
    assert (await page.get("session", session_id=known))[0] == 404
    status, job = await page.post("session/compress", {"session_id": known})
    assert (status, job["state"]) == (200, "failed")
    row = (await page.get("session", session_id=known))[1]
    assert (row["platform"], row["kind"], row["last_seen_at"]) == ("known", "group", 0)
    unknown = {"session_id": "nobody"}
    assert (await page.post("session/compress", unknown))[0] == 404
    assert (await page.get("sessions", q="nobody"))[1]["total"] == 0


async def test_no_good_answer_has_a_key_that_the_bridge_unwraps(page):
    named = {"session_id": GROUP}
    answers = [
        await page.get("sessions"),
        await page.get("session", **named),
        await page.get("session/versions", **named),
        await page.get("session/prompt", **named),
        await page.get("session/compress", **named),
        await page.get("health"),
    ]
    for status, answer in answers:
        assert status == 200 and not {"status", "data"} & answer.keys()
