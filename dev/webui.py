"""A host's WebUI as a program uses it: login, chat, plugins, the plugin's page API.

Invariants:
- All methods block; chats that shall run beside the test go through ``start_chat``.
- An answer with an error status raises ``WebError``, except in ``api``, which
  hands back status and body.
"""

import json
import threading
import time
from dataclasses import dataclass, field

import httpx

PLUGIN = "astrbot_plugin_context_manager"
PROBE = "astrbot_plugin_probe"
TIMEOUT = httpx.Timeout(90.0, connect=5.0)


class WebError(Exception):
    """The WebUI answered with an error."""


@dataclass
class ChatRun:
    """One message sent in the WebUI chat and what came back."""

    session_id: str
    events: list[dict] = field(default_factory=list)
    error: Exception | None = None
    thread: threading.Thread | None = None

    @property
    def text(self) -> str:
        """All plain text of the answer."""
        plain = [e for e in self.events if e.get("type") == "plain"]
        return "".join(str(e.get("data") or "") for e in plain)

    def wait(self, timeout: float = 60.0) -> "ChatRun":
        """Blocks until the answer is complete."""
        self.thread.join(timeout)
        if self.thread.is_alive():
            raise TimeoutError("the WebUI chat did not end")
        if self.error is not None:
            raise self.error
        return self


class WebUI:
    """A logged-in user of one host's WebUI."""

    def __init__(self, port: int, username: str, password: str) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.username = username
        self._password = password
        self._client = httpx.Client(base_url=self.url, timeout=TIMEOUT, trust_env=False)

    @property
    def logged_in(self) -> bool:
        """Whether ``login`` has succeeded."""
        return "Authorization" in self._client.headers

    def close(self) -> None:
        """Closes all connections."""
        self._client.close()

    def login(self) -> None:
        """Logs in; needed once per start of the host."""
        credentials = {"username": self.username, "password": self._password}
        answer = self._client.post("/api/auth/login", json=credentials)
        data = answer.json().get("data") or {}
        token = data.get("token") or answer.cookies.get("astrbot_dashboard_jwt")
        if not token:
            raise WebError(f"login failed: {answer.status_code} {answer.text[:200]}")
        self._client.headers["Authorization"] = f"Bearer {token}"

    def _data(self, answer: httpx.Response) -> dict:
        body = answer.json()
        if answer.status_code != 200 or body.get("status") == "error":
            raise WebError(f"{answer.request.url}: {answer.text[:500]}")
        return body.get("data") or {}

    def get(self, path: str, **params: object) -> dict:
        """GET of a route of the host; returns its ``data``."""
        return self._data(self._client.get(path, params=params))

    def post(self, path: str, body: dict) -> dict:
        """POST to a route of the host; returns its ``data``."""
        return self._data(self._client.post(path, json=body))

    # -- chat ---------------------------------------------------------------

    def new_session(self) -> str:
        """Opens a new WebUI chat; returns its id."""
        return self.get("/api/chat/new_session")["session_id"]

    def session_origin(self, session_id: str) -> str:
        """Returns the host's id of a WebUI chat."""
        return f"webchat:FriendMessage:webchat!{self.username}!{session_id}"

    def start_chat(self, session_id: str, text: str, streaming: bool) -> ChatRun:
        """Sends a message and reads the answer in a thread."""
        run = ChatRun(session_id)
        body = {
            "message": [{"type": "plain", "text": text}],
            "session_id": session_id,
            "enable_streaming": streaming,
        }
        run.thread = threading.Thread(target=self._chat, args=(run, body), daemon=True)
        run.thread.start()
        return run

    def chat(self, session_id: str, text: str, streaming: bool = False) -> ChatRun:
        """Sends a message and waits for the whole answer."""
        return self.start_chat(session_id, text, streaming).wait()

    def regenerate(self, session_id: str, message_id: int) -> ChatRun:
        """Has an answer of a WebUI chat made anew and waits for it."""
        run = ChatRun(session_id)
        body = {"session_id": session_id, "message_id": message_id}
        self._chat(run, body, "/api/chat/message/regenerate")
        if run.error is not None:
            raise run.error
        return run

    def _chat(self, run: ChatRun, body: dict, path: str = "/api/chat/send") -> None:
        try:
            with self._client.stream("POST", path, json=body) as answer:
                for line in answer.iter_lines():
                    if line.startswith("data:"):
                        run.events.append(json.loads(line[5:]))
        except (httpx.HTTPError, ValueError) as error:
            run.error = error

    def stop_chat(self, session_id: str) -> None:
        """Presses the stop button of a WebUI chat."""
        self.post("/api/chat/stop", {"session_id": session_id})

    # -- plugins ------------------------------------------------------------

    def reload_plugin(self, name: str = PLUGIN) -> None:
        """Reloads a plugin."""
        self.post("/api/plugin/reload", {"name": name})

    def switch_plugin(self, on: bool, name: str = PLUGIN) -> None:
        """Switches a plugin on or off."""
        self.post(f"/api/plugin/{'on' if on else 'off'}", {"name": name})

    def api(
        self, method: str, route: str, body: object = None, **params: object
    ) -> tuple[int, dict]:
        """Calls a page route of the plugin; returns status and body."""
        return self.extension(PLUGIN, method, route, body, params)

    def download(self, route: str, **params: object) -> httpx.Response:
        """GET of a page route that answers with a file."""
        path = f"/api/v1/plugins/extensions/{PLUGIN}/{route}"
        return self._client.get(path, params=params)

    def upload(self, route: str, content: bytes, **params: object) -> tuple[int, dict]:
        """Uploads a file to a page route as the page does; returns status and body."""
        path = f"/api/v1/plugins/extensions/{PLUGIN}/{route}"
        files = {"file": ("upload.json", content, "application/json")}
        answer = self._client.post(path, params=params, files=files)
        return answer.status_code, answer.json()

    def probe(self, route: str, **params: object) -> dict:
        """Asks the probe plugin about the inside of the host."""
        status, body = self.extension(PROBE, "GET", route, None, params)
        if status != 200 or body.get("status") == "error":
            raise WebError(f"probe {route}: {status} {body}")
        return body

    def extension(
        self, plugin: str, method: str, route: str, body: object, params: dict
    ) -> tuple[int, dict]:
        """Calls a route of any plugin; returns status and body."""
        answer = self._client.request(
            method,
            f"/api/v1/plugins/extensions/{plugin}/{route}",
            params=params,
            content=None if body is None else json.dumps(body).encode(),
            headers={} if body is None else {"Content-Type": "application/json"},
        )
        return answer.status_code, answer.json()

    def wait_settled(self, session_id: str, timeout: float = 60.0) -> None:
        """Blocks until nothing of a session runs in the host, repairs included.

        Raises:
            TimeoutError: Something still runs; the text says what.
        """
        deadline = time.monotonic() + timeout
        while running := self.probe("running", session_id=session_id)["running"]:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{session_id} did not settle: {running}")
            time.sleep(0.02)

    def wait_at_lock(self, session_id: str, count: int, timeout: float = 20.0) -> None:
        """Blocks until so many requests of a session hold its lock or wait for it."""
        deadline = time.monotonic() + timeout
        while self.probe("running", session_id=session_id)["at_lock"] < count:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{session_id}: fewer than {count} at the lock")
            time.sleep(0.02)
