"""What the scripted model answers: replies, gates, and keywords in the user's text.

Keywords, anywhere in the newest user message:

- ``#tool:NAME*6`` calls the tool six times, one call a step, then answers;
- ``#error`` answers HTTP 400, ``#error@2`` does so in the second step;
- ``#slow:2.0`` waits that many seconds before every answer;
- ``#gate:ID`` holds the first answer until the gate is opened, ``#gate:ID@2`` the second;
- ``#say:WORDS`` answers the rest of that line.

Invariants:
- The same user text always gives the same answer text; the host's own reminder
  and the name of a gate do not count.
- A tool loop goes on by the id of the last tool result, so it survives a host
  that drops the user message from the request.
"""

import hashlib
import itertools
import json
import re
import threading
from dataclasses import dataclass, field

TITLE_MARK = "conversation title generator"
HOST_COMPRESS_MARK = "Generate a summary of our previous conversation history."
GATE_LIMIT_SECONDS = 60.0


class Gate:
    """Holds an answer of the model (or anything else) until a test lets it go."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._entered = threading.Event()

    def enter(self) -> None:
        """Notes that somebody stands before the gate."""
        self._entered.set()

    @property
    def is_open(self) -> bool:
        """Whether the answer may go."""
        return self._open.is_set()

    def release(self) -> None:
        """Opens the gate for good."""
        self._open.set()

    def wait_entered(self, timeout: float = 20.0) -> None:
        """Blocks until somebody stands before the gate.

        Raises:
            TimeoutError: Nobody came in time.
        """
        if not self._entered.wait(timeout):
            raise TimeoutError("nobody reached the gate")


@dataclass
class Reply:
    """One answer of the model.

    ``usage`` is ``"auto"`` (estimated from the body), ``None`` (absent) or the
    object to send. A ``status`` other than 200 is an error with ``text``.
    """

    text: str = ""
    tool_calls: list[dict] = field(default_factory=list)
    reasoning: str = ""
    status: int = 200
    delay: float = 0.0
    gate: Gate | None = None
    usage: dict | str | None = "auto"
    drop_connection: bool = False


@dataclass
class Plan:
    """What one user message asks the model to do, step by step."""

    key: str
    text: str
    answer: str
    tool: str = ""
    calls: int = 0
    error_step: int = 0
    gate_id: str = ""
    gate_step: int = 1
    delay: float = 0.0


def text_of(message: dict) -> str:
    """Returns the text of a message whose content is a string or a list of parts."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "\n".join(
        part.get("text") or ""
        for part in parts
        if isinstance(part, dict) and part.get("type") == "text"
    )


def system_text(body: dict) -> str:
    """Returns the text of all system messages."""
    found = [m for m in body.get("messages", []) if m.get("role") == "system"]
    return "\n".join(text_of(message) for message in found)


def last_user_text(body: dict) -> str:
    """Returns the text of the newest user message."""
    for message in reversed(body.get("messages", [])):
        if message.get("role") == "user":
            return text_of(message)
    return ""


def kind_of(body: dict) -> str:
    """Tells what asked: ``chat``, ``title``, ``compress`` (the host) or ``plain``.

    ``plain`` is a call without tools that is none of the others, such as a summary.
    """
    if TITLE_MARK in system_text(body):
        return "title"
    if HOST_COMPRESS_MARK in last_user_text(body):
        return "compress"
    return "chat" if body.get("tools") else "plain"


def _plan(text: str, key: str) -> Plan:
    # What a plugin puts behind the user's words is not said by the user.
    text = re.sub(r"<memories>.*?</memories>", "", text, flags=re.S)
    stable = re.sub(r"<system_reminder>.*?</system_reminder>|#gate:\S+", "", text, flags=re.S)
    digest = hashlib.sha256(stable.strip().encode("utf-8", "replace")).hexdigest()[:8]
    plan = Plan(key, text, f"Noted, answer {digest}.")
    if found := re.search(r"#say:([^\n]+)", text):
        plan.answer = found[1].strip()
    if found := re.search(r"#tool:(\w+)(?:\*(\d+))?", text):
        plan.tool, plan.calls = found[1], int(found[2] or 1)
    if found := re.search(r"#error(?:@(\d+))?", text):
        plan.error_step = int(found[1] or 1)
    if found := re.search(r"#gate:([\w-]+)(?:@(\d+))?", text):
        plan.gate_id, plan.gate_step = found[1], int(found[2] or 1)
    if found := re.search(r"#slow:([\d.]+)", text):
        plan.delay = float(found[1])
    return plan


class KeywordScript:
    """Answers chat requests by the keywords of their newest user message."""

    def __init__(self) -> None:
        self._plans: dict[str, Plan] = {}
        self._gates: dict[str, Gate] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def gate(self, gate_id: str) -> Gate:
        """Returns the gate of that name, made at the first call."""
        with self._lock:
            return self._gates.setdefault(gate_id, Gate())

    def __call__(self, body: dict) -> Reply:
        """Returns the answer to one request."""
        plan, step = self._place(body)
        reply = Reply(delay=plan.delay)
        if plan.gate_id and step == plan.gate_step:
            reply.gate = self.gate(plan.gate_id)
        if step == plan.error_step:
            reply.status, reply.text = 400, "scripted error"
        elif step <= plan.calls and body.get("tools"):
            reply.tool_calls = [self._call(plan, step)]
        else:
            reply.text = plan.answer
        return reply

    def _place(self, body: dict) -> tuple[Plan, int]:
        last = body["messages"][-1]
        found = re.fullmatch(r"call_(p\d+)_(\d+)", str(last.get("tool_call_id", "")))
        if found and found[1] in self._plans:
            return self._plans[found[1]], int(found[2]) + 1
        key = f"p{next(self._numbers)}"
        plan = self._plans[key] = _plan(last_user_text(body), key)
        return plan, 1

    @staticmethod
    def _call(plan: Plan, step: int) -> dict:
        arguments = {"text": f"step {step}"}
        if found := re.search(r"#args:(\{[^\n]*\})", plan.text):
            arguments = json.loads(found[1])
        return {
            "id": f"call_{plan.key}_{step}",
            "type": "function",
            "function": {"name": plan.tool, "arguments": json.dumps(arguments)},
        }
