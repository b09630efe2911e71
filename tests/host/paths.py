"""One request on its way through a host, ended in every way a request can end.

A path is a channel, an exit and, in a group, whether a second sender waits on
the session's lock meanwhile.
"""

import itertools
import uuid
from dataclasses import dataclass

from dev.host_process import HostProcess
from dev.webui import ChatRun

CHANNELS = ("private", "group", "web_stream", "web_plain")
EXITS = (
    "reply",
    "tool_1",
    "tool_6",
    "tool_answers",
    "error",
    "stop",
    "reload_model",
    "reload_tools",
    "off_model",
    "off_tools",
)
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Path:
    """What happens to one request."""

    channel: str
    exit: str
    waiting: bool = False

    @property
    def name(self) -> str:
        """The row of the table."""
        return f"{self.channel}{'+waiting' if self.waiting else ''} {self.exit}"


ALL_PATHS = tuple(
    Path(channel, end, waiting)
    for channel in CHANNELS
    for end in EXITS
    for waiting in ((False, True) if channel == "group" else (False,))
)


class Chat:
    """One fresh session of a host in one channel."""

    def __init__(self, host: HostProcess, channel: str) -> None:
        self.host, self.channel = host, channel
        self.number = 500_000 + next(_numbers)
        self.web_session = ""
        self._runs: list[ChatRun] = []
        if channel == "private":
            self.origin = f"qq:FriendMessage:{self.number}"
        elif channel == "group":
            self.origin = f"qq:GroupMessage:{self.number}"
        else:
            self.web_session = host.web.new_session()
            self.origin = host.web.session_origin(self.web_session)

    def seed(self, messages: list[dict], token_usage: int = 0) -> str:
        """Gives the chat a history; returns the conversation's id."""
        self.conversation_id = self.host.store.seed(self.origin, messages, token_usage)
        return self.conversation_id

    def start(self, text: str, sender: int = 0) -> None:
        """Sends a message without waiting for anything."""
        if self.channel == "private":
            self.host.qq.send_private(self.number, text)
        elif self.channel == "group":
            self.host.qq.send_group(self.number, self.number + sender, text)
        else:
            streaming = self.channel == "web_stream"
            self._runs.append(self.host.web.start_chat(self.web_session, text, streaming))

    def finish(self) -> None:
        """Waits until nothing of this chat runs any more."""
        for run in self._runs:
            run.wait()
        self._runs.clear()
        self.host.web.wait_settled(self.origin)

    def say(self, text: str, sender: int = 0) -> None:
        """Sends a message and waits until it is answered and saved."""
        before = len(self.host.qq.replies(self.target)) if self.target else 0
        self.start(text, sender)
        if self.target:
            self.host.qq.wait_reply(self.target, before)
        self.finish()

    @property
    def target(self) -> str:
        """Where QQ replies go; empty for the WebUI."""
        known = {"private": f"private:{self.number}", "group": f"group:{self.number}"}
        return known.get(self.channel, "")

    def stop(self) -> None:
        """The user stops the running request."""
        if self.web_session:
            self.host.web.stop_chat(self.web_session)
            return
        before = len(self.host.qq.replies(self.target))
        if self.channel == "private":
            self.host.qq.send_private(self.number, "/stop")
        else:
            self.host.qq.send_group(self.number, self.number, "/stop", at=False)
        self.host.qq.wait_reply(self.target, before)

    @property
    def stored(self) -> list[dict]:
        """The chat's messages as the host has them stored."""
        found = self.host.store.conversation(self.conversation_id)
        return [] if found is None else found.messages


def question_of(path: Path, tool: str) -> str:
    """The user's text that makes the model go this path, without its gate."""
    words = {
        "reply": "",
        "tool_1": f"#tool:{tool}*1",
        "tool_6": f"#tool:{tool}*6",
        "tool_answers": "#tool:answer_user*1",
        "error": "#error",
        "stop": "",
        "reload_model": "",
        "off_model": "",
        "reload_tools": f"#tool:{tool}*2",
        "off_tools": f"#tool:{tool}*2",
    }
    return f"one more question {words[path.exit]}".strip()


def walk(chat: Chat, path: Path, tool: str, with_plugin: bool) -> None:
    """Sends one request down a path and waits until the host has settled."""
    gate_id = uuid.uuid4().hex[:12]
    needs_gate = path.waiting or path.exit.split("_")[0] in ("stop", "reload", "off")
    step = 2 if path.exit.endswith("_tools") else 1
    question = question_of(path, tool)
    before = len(chat.host.qq.replies(chat.target)) if chat.target else 0
    if not needs_gate:
        chat.start(question)
    else:
        gate = chat.host.model.gate(gate_id)
        chat.start(f"{question} #gate:{gate_id}@{step}")
        gate.wait_entered()
        try:
            _while_held(chat, path, with_plugin)
        finally:
            gate.release()
    if chat.target and path.exit != "stop":
        chat.host.qq.wait_reply(chat.target, before)
    chat.finish()
    if path.exit.startswith("off") and with_plugin:
        chat.host.web.switch_plugin(True)


def _while_held(chat: Chat, path: Path, with_plugin: bool) -> None:
    if path.waiting:
        chat.start("second question", sender=1)
        chat.host.web.wait_at_lock(chat.origin, 2)
    if path.exit == "stop":
        chat.stop()
    elif path.exit.startswith("reload") and with_plugin:
        chat.host.web.reload_plugin()
    elif path.exit.startswith("off") and with_plugin:
        chat.host.web.switch_plugin(False)
