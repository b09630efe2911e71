"""The archive follows everything that happens to a chat on a real host."""

import json
import os
import random
import re
from collections.abc import Callable

import pytest

from dev.host_process import HostProcess

from .archives import (
    archived,
    assert_archive_agrees,
    catch_up,
    counted,
    without_checkpoints,
)
from .conftest import HostPool
from .histories import mixed_history
from .profiles import NONE, VERSIONS
from .sessions import Session

SEED = int(os.environ.get("SEED", random.SystemRandom().randrange(10**6)))
PIXEL = "data:image/png;base64," + "iVBORw0KGgo" * 40


def _version(version: str, *marks: pytest.MarkDecorator) -> object:
    return pytest.param(version, marks=[pytest.mark.xdist_group(f"{version}-none"), *marks])


@pytest.fixture(params=[_version("4.26.7", pytest.mark.full), _version("4.29.3")])
def host(request: pytest.FixtureRequest, hosts: HostPool) -> HostProcess:
    """A host with the plugin; the older one in the full run only."""
    return hosts.get(request.param, NONE)


def conversations(chat: Session) -> dict[str, list[dict]]:
    return {c.conversation_id: c.messages for c in chat.host.store.conversations(chat.origin)}


def current(chat: Session) -> str:
    return next(
        (c["conversation_id"] for c in catch_up(chat.host, chat.origin) if c["current"]), ""
    )


# One chat through everything


class Walk:
    """A chat, the operations on it, and every message its host ever held after one."""

    def __init__(self, chat: Session, source: random.Random) -> None:
        self.chat, self.random = chat, source
        self.ever: dict[str, set[str]] = {}
        self.number = 0

    def note(self) -> None:
        """Remembers what the host holds; the archive has had its chance to see it."""
        catch_up(self.chat.host, self.chat.origin)
        for conversation_id, messages in conversations(self.chat).items():
            found = counted(without_checkpoints(messages))
            self.ever.setdefault(conversation_id, set()).update(found)

    def ask(self, words: str = "") -> None:
        self.number += 1
        self.chat.say(f"question number {self.number} {words}")
        self.note()

    def say(self) -> None:
        self.ask()

    def use_tools(self) -> None:
        self.ask(f"#tool:lookup*{self.random.choice((1, 6))}")

    def tool_answers(self) -> None:
        self.ask("#tool:answer_user*1")

    def fail(self) -> None:
        self.ask("#error")

    def stop(self) -> None:
        self.number += 1
        gate_id = f"stop{self.chat.number}x{self.number}"
        gate = self.chat.host.model.gate(gate_id)
        self.chat.start(f"stopped question {self.number} #gate:{gate_id}")
        gate.wait_entered()
        self.chat.stop()
        gate.release()
        self.chat.finish()
        self.note()

    def reload(self) -> None:
        self.number += 1
        gate_id = f"reload{self.chat.number}x{self.number}"
        gate = self.chat.host.model.gate(gate_id)
        already = len(self.chat.replies()) if self.chat.target else 0
        self.chat.start(f"question over a reload {self.number} #gate:{gate_id}")
        gate.wait_entered()
        self.chat.host.web.reload_plugin()
        gate.release()
        if self.chat.target:
            self.chat.host.qq.wait_reply(self.chat.target, already)
        self.chat.finish()
        self.ask()

    def edit(self) -> None:
        conversation_id = current(self.chat)
        history = [dict(m) for m in conversations(self.chat).get(conversation_id, [])]
        texts = [m for m in history if isinstance(m.get("content"), str)]
        if texts:
            self.random.choice(texts)["content"] = f"edited {self.number} {self.random.random()}"
            self._update(conversation_id, history)

    def cut_out(self) -> None:
        conversation_id = current(self.chat)
        history = conversations(self.chat).get(conversation_id, [])
        starts = [i for i, m in enumerate(history) if m["role"] == "user"]
        if len(starts) > 2:
            at = self.random.randrange(len(starts) - 1)
            self._update(conversation_id, history[: starts[at]] + history[starts[at + 1] :])

    def _update(self, conversation_id: str, history: list[dict]) -> None:
        body = {
            "user_id": self.chat.origin,
            "cid": conversation_id,
            "history": json.dumps(history),
        }
        self.chat.host.web.post("/api/conversation/update_history", body)

    def delete(self) -> None:
        if conversation_id := current(self.chat):
            body = {"user_id": self.chat.origin, "cid": conversation_id}
            self.chat.host.web.post("/api/conversation/delete", body)

    def resume(self) -> None:
        known = catch_up(self.chat.host, self.chat.origin)
        chosen = self.random.choice(known)
        body = {"session_id": self.chat.origin, "conversation_id": chosen["conversation_id"]}
        status, answer = self.chat.host.web.api(
            "POST", "conversations/resume", body | {"make_current": True}
        )
        assert status in (200, 404), answer

    def command(self, text: str) -> None:
        self.chat.command(text)

    def reset(self) -> None:
        self.command("/reset")

    def new(self) -> None:
        self.command("/new")

    def switch(self) -> None:
        self.command("/switch 1")

    def regenerate(self) -> None:
        self.ask()
        web, session_id = self.chat.host.web, self.chat.web_session
        shown = web.get("/api/chat/get_session", session_id=session_id)["history"]
        bot = [m for m in shown if m["content"]["type"] == "bot"]
        if bot:
            web.regenerate(session_id, bot[-1]["id"])
            self.chat.finish()
            self.note()


EVERYWHERE: tuple[Callable[[Walk], None], ...] = (
    Walk.say,
    Walk.say,
    Walk.use_tools,
    Walk.tool_answers,
    Walk.fail,
    Walk.stop,
    Walk.reload,
    Walk.edit,
    Walk.cut_out,
    Walk.delete,
    Walk.resume,
)
ON_QQ = (Walk.reset, Walk.new, Walk.switch)
ON_THE_WEB = (Walk.regenerate, Walk.reset)


def _walks() -> list:
    cases = []
    for version in VERSIONS:
        for channel in ("private", "web_plain"):
            for count in (16, 50):
                lean = count == 16 and (version == "4.29.3") == (channel == "private")
                marks = [pytest.mark.xdist_group(f"{version}-none")]
                marks += [] if lean else [pytest.mark.full]
                cases.append(pytest.param(version, channel, count, marks=marks))
    return cases


@pytest.mark.parametrize(("version", "channel", "count"), _walks())
def test_archive_and_host_agree_after_random_operations(
    hosts: HostPool, version: str, channel: str, count: int
) -> None:
    print(f"SEED={SEED}")
    source = random.Random(f"{SEED} {version} {channel}")
    chat = Session(hosts.get(version, NONE), channel)
    chat.seed(mixed_history(12, 900))
    walk = Walk(chat, source)
    walk.say()
    special = ON_QQ if channel == "private" else ON_THE_WEB
    # Everything once, in any order, before anything twice.
    operations = [*EVERYWHERE, *special]
    source.shuffle(operations)
    operations += source.choices([*EVERYWHERE, *special], k=count)
    done = []
    for operation in operations[:count]:
        done.append(operation.__name__)
        operation(walk)
    walk.say()
    print(" ".join(done))
    assert_archive_agrees(chat.host, chat.origin)
    archive: dict[str, set[str]] = {}
    for conversation_id, found in archived(chat.host, chat.origin).items():
        messages = counted([json.loads(row["content"]) for row in found])
        archive.setdefault(conversation_id.partition("#")[0], set()).update(messages)
    for conversation_id, messages in walk.ever.items():
        assert messages <= archive.get(conversation_id, set())


# What a message's row holds


def test_a_group_message_is_archived_with_its_sender_and_time(host: HostProcess) -> None:
    chat = Session(host, "group")
    chat.say("the first question")
    catch_up(host, chat.origin)
    [found] = archived(host, chat.origin).values()
    user, answer = found
    assert user["sender"] == f"user{chat.number}" and user["text"] == "the first question"
    assert answer["sender"] == "" and 0 <= answer["time"] - user["time"] < 5
    assert json.loads(user["token_classes"])[1] == len("thefirstquestion")


def test_pictures_in_a_history_are_archived_as_their_hash(host: HostProcess) -> None:
    chat = Session(host)
    parts = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": PIXEL}}]
    chat.seed([{"role": "user", "content": parts}, {"role": "assistant", "content": "a pixel"}])
    chat.say("and now?")
    catch_up(host, chat.origin)
    [found] = archived(host, chat.origin).values()
    assert re.fullmatch(r"look\n\[图片 [0-9a-f]{12}\]", found[0]["text"])
    assert PIXEL in json.dumps(chat.stored)
    assert not any(PIXEL in row["content"] for row in found)


def test_a_session_that_is_not_archived_leaves_no_row_and_loses_nothing(host: HostProcess) -> None:
    chat = Session(host)
    chat.say("archived")
    assert chat.change(archive_enabled=False)[0] == 200
    chat.say("not archived")
    catch_up(host, chat.origin)
    [found] = archived(host, chat.origin).values()
    assert [row["text"] for row in found][::2] == ["archived"]
    assert chat.change(archive_enabled=True)[0] == 200
    chat.say("archived again")
    assert_archive_agrees(host, chat.origin)


# The page's calls and the commands


@pytest.fixture
def chat(host: HostProcess) -> Session:
    """A group chat with an earlier conversation and a current one."""
    chat = Session(host, "group")
    chat.seed(mixed_history(8, 300))
    chat.say("the end of the first talk")
    chat.command("/new")
    chat.say("the second talk begins")
    return chat


def test_conversations_are_a_chain_with_their_place(chat: Session) -> None:
    new, old = catch_up(chat.host, chat.origin)
    assert (new["current"], new["in_host"], new["messages"]) == (True, True, 2)
    assert (old["current"], old["in_host"]) == (False, True)
    assert old["messages"] == len(without_checkpoints(chat.stored))
    assert new["title"] == "the second talk begins"
    body = {"user_id": chat.origin, "cid": old["conversation_id"]}
    chat.host.web.post("/api/conversation/delete", body)
    assert [c["in_host"] for c in catch_up(chat.host, chat.origin)] == [True, False]


def said_by(row: dict) -> tuple:
    return row["text"], row["sender"], row["time"]


@pytest.mark.parametrize("make_current", [True, False])
def test_a_deleted_conversation_is_brought_back_whole(chat: Session, make_current: bool) -> None:
    new, old = catch_up(chat.host, chat.origin)
    before = without_checkpoints(chat.stored)
    body = {"user_id": chat.origin, "cid": old["conversation_id"]}
    chat.host.web.post("/api/conversation/delete", body)
    wanted = {"session_id": chat.origin, "conversation_id": old["conversation_id"]}
    wanted["make_current"] = make_current
    status, answer = chat.host.web.api("POST", "conversations/resume", wanted)
    assert status == 200, answer
    made = answer["conversation_id"]
    assert conversations(chat)[made] == before
    chat.say("which talk is this?")
    said_in = made if make_current else new["conversation_id"]
    assert "which talk is this?" in json.dumps(conversations(chat)[said_in])
    assert_archive_agrees(chat.host, chat.origin)
    rows = archived(chat.host, chat.origin)
    first = rows[old["conversation_id"]]
    copies = rows[made][: len(first)]
    assert [said_by(row) for row in copies] == [said_by(row) for row in first]


def test_only_a_sessions_own_conversations_can_be_brought_back(
    chat: Session, host: HostProcess
) -> None:
    other = Session(host)
    other.say("hello")
    old = catch_up(host, chat.origin)[1]
    body = {"session_id": other.origin, "conversation_id": old["conversation_id"]}
    assert host.web.api("POST", "conversations/resume", body)[0] == 404
    assert len(conversations(other)) == 1


def test_history_is_read_by_pages_with_filters(chat: Session) -> None:
    host, old = chat.host, catch_up(chat.host, chat.origin)[1]
    where = {"session_id": chat.origin, "conversation_id": old["conversation_id"]}
    status, first = host.web.api("GET", "history", limit=4, **where)
    assert status == 200 and first["total"] == old["messages"]
    _, second = host.web.api("GET", "history", limit=4, offset=4, **where)
    seqs = [item["seq"] for item in first["items"] + second["items"]]
    assert seqs == list(range(8))
    assert {"id", "session_id", "role", "sender", "time", "text", "snippet", "in_host"} <= set(
        first["items"][0]
    )
    _, users = host.web.api("GET", "history", role="user", limit=200, **where)
    assert {item["role"] for item in users["items"]} == {"user"}
    _, place = host.web.api("GET", "history", around=second["items"][0]["id"], limit=3, **where)
    assert second["items"][0] in place["items"] and place["offset"] == 3
    assert host.web.api("GET", "history", since="soon", **where)[0] == 400
    assert host.web.api("GET", "history", session_id="qq:GroupMessage:0")[0] == 404


def test_the_archive_is_exported_whole(chat: Session) -> None:
    answer = chat.host.web.download("history/export", session_id=chat.origin)
    file = json.loads(answer.text)
    assert [len(c["history"]) for c in file["conversations"]] == [
        c["messages"] for c in catch_up(chat.host, chat.origin)
    ]
    old = file["conversations"][1]
    assert [m["message"] for m in old["history"]] == without_checkpoints(chat.stored)
    answer = chat.host.web.download(
        "history/export", conversation_id=old["conversation_id"], format="markdown"
    )
    assert "the end of the first talk" in answer.text
    assert "the second talk begins" not in answer.text


def test_a_deleted_archive_is_gone_for_good_and_the_chat_goes_on(chat: Session) -> None:
    total = sum(c["messages"] for c in catch_up(chat.host, chat.origin))
    body = {"session_id": chat.origin}
    status, answer = chat.host.web.api("POST", "history/delete", body)
    assert (status, answer) == (200, {"deleted": total})
    chat.say("after the deletion")
    assert [c["messages"] for c in catch_up(chat.host, chat.origin)] == [2]
    [found] = archived(chat.host, chat.origin).values()
    assert found[0]["text"] == "after the deletion"


def test_the_commands_list_and_bring_back(chat: Session) -> None:
    [listed] = chat.command("/历史会话")
    lines = listed.splitlines()
    assert lines[1].startswith("1. ") and "当前" in lines[1] and "the second talk" in lines[1]
    [answer] = chat.command("/恢复会话 2")
    assert "question 1" in answer
    assert "the end of the first talk" in chat.ask("what was that?").dump()
    assert "没有序号为 99" in chat.command("/resume_conversation 99")[0]
    for words in ("", " x", " 1 2", " -1", " " + "9" * 30):
        assert "/恢复会话 2" in chat.command(f"/恢复会话{words}")[0]


def test_a_group_member_may_list_but_not_bring_back(chat: Session) -> None:
    member = chat.number + 7
    assert "the second talk" in chat.command("/历史会话", sender=member)[0]
    before = len(conversations(chat))
    assert "只对机器人管理员" in chat.command("/恢复会话 2", sender=member)[0]
    assert len(conversations(chat)) == before
