"""A QQ client: speaks OneBot v11 to a host over a reverse WebSocket.

One client stands for the whole of QQ: every sender and group is just a number in
the events it sends.

Invariants:
- Runs in a thread with a loop of its own; all public methods block and may be
  called from any thread.
- Every action the host sends is recorded and answered.
"""

import asyncio
import itertools
import json
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field

import aiohttp

BOT_ID = 10001
SEND_ACTIONS = {"send_group_msg", "send_private_msg", "send_msg"}


@dataclass
class SentMessage:
    """One message the host sent to a group or a person."""

    target: str
    text: str
    segments: list[dict]
    received_at: float = field(default_factory=time.time)


class OneBotClient:
    """The QQ side of one host.

    Args:
        port: Where the host's OneBot adapter listens.
    """

    def __init__(self, port: int) -> None:
        self._url = f"ws://127.0.0.1:{port}/ws"
        self._sent: list[SentMessage] = []
        self.actions: list[dict] = []
        self.group_names: dict[int, str] = {}
        self._changed = threading.Condition()
        self._ids = itertools.count(1000)
        self._loop = asyncio.new_event_loop()
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._connected = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    # -- life ---------------------------------------------------------------

    @property
    def started(self) -> bool:
        """Whether ``start`` was called."""
        return self._thread.is_alive()

    def start(self, timeout: float = 30.0) -> "OneBotClient":
        """Connects and waits for the connection."""
        self._thread.start()
        if not self._connected.wait(timeout):
            raise TimeoutError("the host's OneBot adapter does not answer")
        return self

    def stop(self) -> None:
        """Closes the connection."""
        self._closing = True
        if self._socket is not None:
            asyncio.run_coroutine_threadsafe(self._socket.close(), self._loop)
        if self.started:
            self._thread.join(10)

    def wait_connected(self, timeout: float = 30.0) -> None:
        """Blocks until the connection stands, for example after a host's restart."""
        if not self._connected.wait(timeout):
            raise TimeoutError("not connected to the host")

    # -- sending ------------------------------------------------------------

    def send_private(
        self, user_id: int, text: str, nickname: str = "", segments: list[dict] | None = None
    ) -> int:
        """Sends a private message; returns its id."""
        sender = {"user_id": user_id, "nickname": nickname or f"user{user_id}"}
        return self._post("private", user_id, text, sender, {"sub_type": "friend"}, segments)

    def send_group(
        self,
        group_id: int,
        user_id: int,
        text: str,
        at: bool = True,
        role: str = "member",
        segments: list[dict] | None = None,
    ) -> int:
        """Sends a group message, by default with an at-segment that wakes the bot."""
        sender = {
            "user_id": user_id,
            "nickname": f"user{user_id}",
            "card": "",
            "role": role,
        }
        extra = {"group_id": group_id, "sub_type": "normal"}
        front = [{"type": "at", "data": {"qq": str(BOT_ID)}}] if at else []
        more = front + (segments or [])
        return self._post("group", user_id, text, sender, extra, more)

    def _post(
        self,
        kind: str,
        user_id: int,
        text: str,
        sender: dict,
        extra: dict,
        front: list[dict] | None = None,
    ) -> int:
        number = next(self._ids)
        segments = [*(front or []), {"type": "text", "data": {"text": text}}]
        self._emit(
            {
                "time": int(time.time()),
                "self_id": BOT_ID,
                "post_type": "message",
                "message_type": kind,
                "message_id": number,
                "user_id": user_id,
                "message": segments,
                "raw_message": text,
                "font": 0,
                "sender": sender,
                **extra,
            }
        )
        return number

    def _emit(self, event: dict) -> None:
        self.wait_connected()
        done: Future = asyncio.run_coroutine_threadsafe(
            self._socket.send_str(json.dumps(event, ensure_ascii=False)), self._loop
        )
        done.result(10)

    # -- receiving ----------------------------------------------------------

    def replies(self, target: str) -> list[SentMessage]:
        """Returns what the host sent to ``group:ID`` or ``private:ID`` so far."""
        with self._changed:
            return [message for message in self._sent if message.target == target]

    def wait_reply(self, target: str, already: int = 0, timeout: float = 30.0) -> SentMessage:
        """Blocks until more than ``already`` messages came; returns the first new one.

        Raises:
            TimeoutError: Nothing came in time.
        """
        deadline = time.monotonic() + timeout
        with self._changed:
            while len(found := self._to(target)) <= already:
                left = deadline - time.monotonic()
                if left <= 0 or not self._changed.wait(left):
                    raise TimeoutError(f"no reply to {target} in {timeout} s")
        return found[already]

    def _to(self, target: str) -> list[SentMessage]:
        return [message for message in self._sent if message.target == target]

    # -- connection ---------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._stay_connected())
        self._loop.close()

    async def _stay_connected(self) -> None:
        headers = {"X-Self-ID": str(BOT_ID), "X-Client-Role": "Universal"}
        async with aiohttp.ClientSession() as session:
            while not self._closing:
                try:
                    self._socket = await session.ws_connect(
                        self._url, headers=headers, max_msg_size=0
                    )
                except (aiohttp.ClientError, OSError):
                    await asyncio.sleep(0.1)
                    continue
                self._connected.set()
                async for message in self._socket:
                    if message.type == aiohttp.WSMsgType.TEXT:
                        await self._on_action(json.loads(message.data))
                self._connected.clear()

    async def _on_action(self, action: dict) -> None:
        name, params = action.get("action", ""), action.get("params") or {}
        with self._changed:
            self.actions.append(action)
            if name in SEND_ACTIONS:
                self._sent.append(_sent_message(params))
            self._changed.notify_all()
        answer = {"status": "ok", "retcode": 0, "data": self._data(name, params)}
        await self._socket.send_str(json.dumps({**answer, "echo": action.get("echo")}))

    def _data(self, name: str, params: dict) -> object:
        group_id = params.get("group_id", 0)
        member = {"user_id": 1, "nickname": "owner", "card": "", "role": "owner"}
        answers: dict[str, object] = {
            "get_login_info": {"user_id": BOT_ID, "nickname": "bot"},
            "get_group_info": {
                "group_id": group_id,
                "group_name": self.group_names.get(group_id, f"group {group_id}"),
                "member_count": 3,
                "max_member_count": 200,
            },
            "get_group_member_list": [member],
            "get_group_member_info": {**member, "user_id": params.get("user_id", 1)},
            "get_stranger_info": {
                "user_id": params.get("user_id", 0),
                "nickname": f"user{params.get('user_id', 0)}",
            },
        }
        return answers.get(name, {"message_id": next(self._ids)})


def _sent_message(params: dict) -> SentMessage:
    group = params.get("group_id")
    target = f"group:{group}" if group else f"private:{params.get('user_id')}"
    message = params.get("message") or []
    segments = message if isinstance(message, list) else []
    texts = [s["data"].get("text", "") for s in segments if s.get("type") == "text"]
    return SentMessage(target, "".join(texts) or str(message), segments)
