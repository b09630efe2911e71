"""Single chats with everything the plugin knows of them, and what was sent for them.

Invariants:
- Every ``Session`` is a chat that its host has never seen, so tests that share a
  host do not meet.
"""

import sqlite3
from contextlib import closing

from dev.host_process import ADMIN_ID, HostProcess
from dev.scripted_model import RecordedRequest

from .paths import Chat

DATABASE = "context_manager.db"


class Session(Chat):
    """A chat, its row in the plugin's database and its requests."""

    def __init__(self, host: HostProcess, channel: str = "private", **row: object) -> None:
        super().__init__(host, channel)
        self.conversation_id = ""
        if row:
            self._insert(row)

    def _insert(self, row: dict) -> None:
        """Writes the row before the first request, as an import would."""
        columns = {"session_id": self.origin, "kind": self.channel, **row}
        names, places = ", ".join(columns), ", ".join("?" * len(columns))
        path = self.host.plugin_data / DATABASE
        with closing(sqlite3.connect(path, timeout=20)) as connection:
            connection.execute(
                f"INSERT INTO sessions ({names}) VALUES ({places})", tuple(columns.values())
            )
            connection.commit()

    # -- talking ------------------------------------------------------------

    def replies(self) -> list[str]:
        """All QQ replies so far."""
        return [message.text for message in self.host.qq.replies(self.target)]

    def command(self, text: str, sender: int = ADMIN_ID, role: str = "member") -> list[str]:
        """Sends a command, waits for its end and returns all replies to it."""
        already = len(self.replies())
        if self.channel == "group":
            self.host.qq.send_group(self.number, sender, text, role=role)
        else:
            self.start(text)
        if self.target:
            self.host.qq.wait_reply(self.target, already)
        runs = list(self._runs)
        self.finish()
        return self.replies()[already:] if self.target else [run.text for run in runs]

    def ask(self, text: str) -> RecordedRequest:
        """Says something and returns the first request that carried it."""
        before = len(self.host.model.requests())
        self.say(text)
        new = self.host.model.requests()[before:]
        found = [r for r in new if r.kind == "chat" and text in str(current_of(r.messages))]
        assert found, f"no request with {text!r}\n{self.host.log()[-3000:]}"
        return found[0]

    # -- what is stored -----------------------------------------------------

    @property
    def raw(self) -> str:
        """All conversations of the chat as the host stores them."""
        return "\n".join(c.raw for c in self.host.store.conversations(self.origin))

    @property
    def newest(self) -> list[dict]:
        """The messages of the newest conversation."""
        return self.host.store.conversations(self.origin)[-1].messages

    def row(self) -> dict:
        """The session as the page reads it."""
        status, answer = self.host.web.api("GET", "session", session_id=self.origin)
        assert status == 200, answer
        return answer

    def change(self, **changes: object) -> tuple[int, dict]:
        """Saves values as the page does."""
        body = {
            "session_id": self.origin,
            "revision": self.row()["revision"],
            "changes": changes,
        }
        return self.host.web.api("POST", "session", body)


def current_of(messages: list[dict]) -> dict:
    """The newest user message of a request."""
    return next((m for m in reversed(messages) if m.get("role") == "user"), {})


def system_text(request: RecordedRequest) -> str:
    """The text of the system message, which there is at most one of."""
    found = [m["content"] for m in request.messages if m["role"] == "system"]
    assert len(found) <= 1
    return found[0] if found else ""


def our_lines(log: str, level: str = "") -> list[str]:
    """The log lines of the plugin, of one level if it is given (``WARN``, ``ERRO``)."""
    return [
        line
        for line in log.splitlines()
        if "[context_manager]" in line and (not level or f"[{level}]" in line)
    ]
