"""A complete model for a host: an OpenAI-protocol server that answers by script.

``/v1/chat/completions`` (streaming and not, tool calls, errors, delays, usage),
``/v1/embeddings`` and ``/v1/models`` on a free port of 127.0.0.1.

Invariants:
- The server runs in a thread with a loop of its own; every public method may be
  called from any thread.
- Every request body is recorded before it is answered, with the broken message
  rules that ``message_rules`` finds.
"""

import asyncio
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from aiohttp import web

from .message_rules import violations
from .script import GATE_LIMIT_SECONDS, Gate, KeywordScript, Reply, kind_of
from .scripted_embeddings import ScriptedEmbeddings

Script = Callable[[dict], Reply | None]


@dataclass
class RecordedRequest:
    """One request as the server received it."""

    number: int
    kind: str
    body: dict
    violations: list[str]
    received_at: float = field(default_factory=time.time)
    answered: bool = False

    @property
    def messages(self) -> list[dict]:
        """The messages of the request."""
        return self.body["messages"]

    def dump(self) -> str:
        """The messages as JSON text, for searches."""
        return json.dumps(self.messages, ensure_ascii=False)


class ScriptedModel:
    """The server, its record and its script.

    Args:
        strict: Answer HTTP 400 to requests that break a message rule.
    """

    def __init__(self, strict: bool = False) -> None:
        self.strict = strict
        self.default_usage: dict | str | None = "auto"
        self.title = "<None>"
        self.plain_reply: Script = lambda body: Reply("A short summary.")
        self.embeddings = ScriptedEmbeddings()
        self.port = 0
        self._keywords = KeywordScript()
        self._scripts: list[Script] = []
        self._record: list[RecordedRequest] = []
        self._lock = threading.Lock()
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closing: asyncio.Event | None = None

    # -- life ---------------------------------------------------------------

    def start(self) -> "ScriptedModel":
        """Starts the server and waits until it listens."""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        if not self._ready.wait(10):
            raise RuntimeError("the scripted model did not start")
        return self

    def stop(self) -> None:
        """Stops the server; running answers are dropped."""
        if self._loop and self._closing:
            self._loop.call_soon_threadsafe(self._closing.set)
        if self._thread:
            self._thread.join(10)

    def __enter__(self) -> "ScriptedModel":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def base_url(self) -> str:
        """The address for ``api_base``."""
        return f"http://127.0.0.1:{self.port}/v1"

    # -- script -------------------------------------------------------------

    def gate(self, gate_id: str) -> Gate:
        """Returns the gate that ``#gate:ID`` in a user's text refers to."""
        return self._keywords.gate(gate_id)

    def add_script(self, script: Script) -> Callable[[], None]:
        """Adds a script asked before all others; ``None`` passes the request on.

        Returns:
            A function that removes the script again.
        """
        with self._lock:
            self._scripts.insert(0, script)
        return lambda: self._scripts.remove(script)

    # -- record -------------------------------------------------------------

    def requests(self, containing: str = "", kind: str = "") -> list[RecordedRequest]:
        """Returns the recorded requests that hold a text and are of a kind."""
        with self._lock:
            found = list(self._record)
        return [
            request
            for request in found
            if kind in ("", request.kind) and (not containing or containing in request.dump())
        ]

    def clear(self) -> None:
        """Forgets all recorded requests."""
        with self._lock:
            self._record.clear()

    # -- server -------------------------------------------------------------

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop, self._closing = asyncio.get_running_loop(), asyncio.Event()
        app = web.Application(client_max_size=512 * 1024 * 1024)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/embeddings", self._embeddings)
        app.router.add_get("/v1/models", self._models)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", self.port)
        await site.start()
        self.port = runner.addresses[0][1]
        self._ready.set()
        await self._closing.wait()
        await runner.cleanup()

    def _remember(self, body: dict) -> RecordedRequest:
        found = violations(body.get("messages"))
        with self._lock:
            number = len(self._record) + 1
            request = RecordedRequest(number, kind_of(body), body, found)
            self._record.append(request)
        return request

    def _reply_to(self, request: RecordedRequest) -> Reply:
        if self.strict and request.violations:
            return Reply("; ".join(request.violations), status=400)
        for script in list(self._scripts):
            if (reply := script(request.body)) is not None:
                return reply
        if request.kind == "title":
            return Reply(self.title)
        if request.kind == "compress":
            return Reply("Host summary of earlier talk.")
        if request.kind == "plain":
            return self.plain_reply(request.body) or Reply("A short summary.")
        return self._keywords(request.body)

    async def _chat(self, http: web.Request) -> web.StreamResponse:
        body = json.loads(await http.text())
        request = self._remember(body)
        reply = self._reply_to(request)
        await self._hold(reply)
        if reply.drop_connection and http.transport:
            http.transport.close()
        if reply.status != 200:
            error = {"message": reply.text or "error", "type": "scripted"}
            return web.json_response({"error": error}, status=reply.status)
        usage = self._usage(body, reply)
        request.answered = True
        if body.get("stream"):
            return await self._stream(http, body, reply, usage)
        return web.json_response(_completion(body, reply, usage))

    @staticmethod
    async def _hold(reply: Reply) -> None:
        await asyncio.sleep(reply.delay)
        if reply.gate is None:
            return
        reply.gate.enter()
        deadline = time.monotonic() + GATE_LIMIT_SECONDS
        while not reply.gate.is_open and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    def _usage(self, body: dict, reply: Reply) -> dict | None:
        usage = self.default_usage if reply.usage == "auto" else reply.usage
        return estimated_usage(body, reply) if usage == "auto" else usage

    @staticmethod
    async def _stream(
        http: web.Request, body: dict, reply: Reply, usage: dict | None
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(http)
        for chunk in _chunks(body, reply, usage):
            data = json.dumps(chunk, ensure_ascii=True)
            await response.write(f"data: {data}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _embeddings(self, http: web.Request) -> web.Response:
        status, answer = await self.embeddings.answer(await http.json())
        return web.json_response(answer, status=status)

    @staticmethod
    async def _models(_: web.Request) -> web.Response:
        model = {"id": "scripted", "object": "model", "created": 0, "owned_by": "dev"}
        return web.json_response({"object": "list", "data": [model]})


def estimated_usage(body: dict, reply: Reply) -> dict:
    """Returns a usage object in the size of a real provider's, none of it cached."""
    shown = [body.get("messages"), body.get("tools")]
    text = json.dumps(shown, ensure_ascii=False)
    wide = sum(1 for char in text if ord(char) > 0x2E80)
    prompt = int(wide * 0.6 + (len(text) - wide) * 0.25)
    output = max(1, len(reply.text) // 3)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
    }


def _head(body: dict, kind: str) -> dict:
    return {
        "id": "chatcmpl-scripted",
        "object": kind,
        "created": int(time.time()),
        "model": body.get("model", "scripted"),
    }


def _completion(body: dict, reply: Reply, usage: dict | None) -> dict:
    message: dict = {"role": "assistant", "content": reply.text or None}
    if reply.tool_calls:
        message["tool_calls"] = reply.tool_calls
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    finish = "tool_calls" if reply.tool_calls else "stop"
    choice = {"index": 0, "message": message, "finish_reason": finish}
    completion = {**_head(body, "chat.completion"), "choices": [choice]}
    return {**completion, "usage": usage} if usage else completion


def _chunks(body: dict, reply: Reply, usage: dict | None) -> list[dict]:
    deltas: list[dict] = [{"role": "assistant", "content": ""}]
    if reply.reasoning:
        deltas.append({"reasoning_content": reply.reasoning})
    middle = len(reply.text) // 2
    deltas += [{"content": t} for t in (reply.text[:middle], reply.text[middle:]) if t]
    if reply.tool_calls:
        calls = [{**call, "index": i} for i, call in enumerate(reply.tool_calls)]
        deltas.append({"tool_calls": calls})
    head = _head(body, "chat.completion.chunk")
    finish = "tool_calls" if reply.tool_calls else "stop"
    ends: list[tuple[dict, str | None]] = [(delta, None) for delta in deltas]
    ends.append(({}, finish))
    chunks: list[dict] = [
        {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": end}]}
        for delta, end in ends
    ]
    if usage and (body.get("stream_options") or {}).get("include_usage"):
        chunks.append({**head, "choices": [], "usage": usage})
    return chunks
