"""What is broken in the plugin never costs a reply or a message.

One host of each version is broken in many ways, one after the other, and mended
after each.
"""

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from dev.host_process import HostProcess, merged
from dev.script import Reply, kind_of

from .conftest import HostPool
from .histories import brief, comparable, mixed_history
from .profiles import BARE, TRUNCATE, VERSIONS, Profile
from .sessions import DATABASE, PLUGINS, Session, our_lines, system_text, wait_until

SABOTEUR = "astrbot_plugin_saboteur"
BREAKABLE = Profile("breakable", plugins=(PLUGINS / SABOTEUR,))
HISTORY = mixed_history(20, 700)
SENT_WHOLE = 40


def _grouped(name: str) -> list:
    return [pytest.param(v, marks=pytest.mark.xdist_group(f"{v}-{name}")) for v in VERSIONS]


@pytest.fixture(params=_grouped("breakable"))
def broken(request: pytest.FixtureRequest, hosts: HostPool) -> Iterator[HostProcess]:
    """A host to break; mended, with a new instance of the plugin, after the test."""
    host = hosts.get(request.param, BREAKABLE)
    yield host
    _sabotage(host, "mend")
    host.web.switch_plugin(False)
    _remove_database(host)
    host.web.switch_plugin(True)


def _sabotage(host: HostProcess, route: str, **params: object) -> dict:
    status, answer = host.web.extension(SABOTEUR, "GET", route, None, params)
    assert status == 200, answer
    return answer


def _remove_database(host: HostProcess) -> None:
    for path in host.plugin_data.glob(f"{DATABASE}*"):
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink()


def _restart_plugin(host: HostProcess, meanwhile: Callable[[], object]) -> int:
    """Does something while the plugin is off; returns the log's size before."""
    host.web.switch_plugin(False)
    before = host.log_size()
    meanwhile()
    host.web.switch_plugin(True)
    return before


def _complaints(host: HostProcess, since: int) -> list[str]:
    log = host.log(since)
    return our_lines(log, "WARN") + our_lines(log, "ERRO")


def _talk(chat: Session, times: int = 2) -> list:
    """Says things; every one is answered and the history stays whole."""
    requests = [chat.ask(f"message {n} of {chat.number}") for n in range(times)]
    stored = chat.stored
    assert stored[: len(HISTORY)] == HISTORY, brief(stored)
    roles = [m["role"] for m in stored[len(HISTORY) :]]
    assert roles == ["user", "assistant"] * times
    assert [r.violations for r in requests] == [[]] * times
    return requests


# The database


def test_a_database_that_cannot_be_opened_costs_only_memory(broken: HostProcess) -> None:
    path = broken.plugin_data / DATABASE
    before = _restart_plugin(broken, lambda: (_remove_database(broken), path.mkdir()))
    chat = Session(broken)
    chat.seed(HISTORY)
    requests = _talk(chat)
    assert all(len(r.messages) < SENT_WHOLE for r in requests)
    assert len(_complaints(broken, before)) == 1
    assert broken.web.api("GET", "sessions")[0] == 503
    assert broken.web.api("GET", "health")[1]["database"] != "ok"
    assert len(chat.command("/立即压缩")) == 1
    before = broken.log_size()
    path.rmdir()
    _talk_again(chat)
    assert chat.row()["session_id"] == chat.origin
    assert _complaints(broken, before) == []
    assert broken.web.api("GET", "health")[1]["database"] == "ok"
    assert broken.log(before).count("database usable again") == 1


def _talk_again(chat: Session) -> None:
    stored = chat.stored
    chat.ask(f"later message of {chat.number}")
    assert chat.stored[: len(stored)] == stored


def test_a_corrupt_database_is_moved_aside(broken: HostProcess) -> None:
    path = broken.plugin_data / DATABASE
    garbage = b"no database at all " * 5000
    before = _restart_plugin(broken, lambda: (_remove_database(broken), path.write_bytes(garbage)))
    chat = Session(broken, fixed_memory="a rule")
    chat.seed(HISTORY)
    assert "a rule" in _talk(chat)[0].dump()
    assert len(_complaints(broken, before)) == 1
    aside = [p for p in broken.plugin_data.glob(f"{DATABASE}.broken-*") if p.is_file()]
    assert [p.read_bytes() for p in aside] == [garbage]


def test_failed_writes_are_reported_once_and_memory_is_still_sent(broken: HostProcess) -> None:
    chat = Session(broken, fixed_memory="a rule", recent_context_token_budget=4000)
    chat.seed(HISTORY)
    tables = _tables(broken)
    for verb in ("INSERT", "UPDATE", "DELETE"):
        for table in tables:
            _execute(
                broken,
                f"CREATE TRIGGER no_{verb}_{table} BEFORE {verb} ON {table} "
                "BEGIN SELECT RAISE(ABORT, 'disk is full'); END",
            )
    before = broken.log_size()
    requests = _talk(chat, 3)
    assert all("a rule" in r.dump() and len(r.messages) < SENT_WHOLE for r in requests)
    assert len(_complaints(broken, before)) == 1
    assert chat.change(summary="x")[0] == 503
    assert "disk is full" in broken.web.api("GET", "health")[1]["database"]
    for verb in ("INSERT", "UPDATE", "DELETE"):
        for table in tables:
            _execute(broken, f"DROP TRIGGER no_{verb}_{table}")
    _talk_again(chat)
    assert len(_complaints(broken, before)) == 1
    assert "usable again" in broken.log(before)
    assert chat.change(summary="x")[0] == 200


def _execute(host: HostProcess, statement: str) -> list[tuple]:
    with closing(sqlite3.connect(host.plugin_data / DATABASE, timeout=20)) as connection:
        rows = connection.execute(statement).fetchall()
        connection.commit()
    return rows


def _tables(host: HostProcess) -> list[str]:
    """The plugin's tables that may have triggers."""
    found = _execute(host, "SELECT name, sql FROM sqlite_master WHERE type = 'table'")
    return [
        name
        for name, sql in found
        if not name.startswith("sqlite_") and sql and "VIRTUAL" not in sql
    ]


def test_a_locked_database_delays_but_never_stops_a_chat(broken: HostProcess) -> None:
    chat = Session(broken, fixed_memory="a rule", recent_context_token_budget=4000)
    chat.seed(HISTORY)
    before = broken.log_size()
    path = broken.plugin_data / DATABASE
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        (request,) = _talk(chat, 1)
        connection.execute("ROLLBACK")
    assert "a rule" in request.dump() and len(request.messages) < SENT_WHOLE
    assert len(_complaints(broken, before)) == 1
    _talk_again(chat)
    assert "usable again" in broken.log(before)


def test_a_database_locked_at_the_start_is_neither_moved_nor_fatal(broken: HostProcess) -> None:
    chat = Session(broken, fixed_memory="a rule", recent_context_token_budget=4000)
    chat.seed(HISTORY)
    broken.web.switch_plugin(False)
    before = broken.log_size()
    path = broken.plugin_data / DATABASE
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("BEGIN EXCLUSIVE")
        broken.web.switch_plugin(True)
        (request,) = _talk(chat, 1)
        connection.execute("ROLLBACK")
    assert len(request.messages) < SENT_WHOLE
    assert len(_complaints(broken, before)) == 1
    assert [p.name for p in broken.plugin_data.glob("*.broken-*")] == []
    _restart_plugin(broken, lambda: None)
    assert "a rule" in chat.ask(f"unlocked in {chat.number}").dump()


def test_a_database_that_breaks_while_open_keeps_the_last_known_memory(
    broken: HostProcess,
) -> None:
    chat = Session(broken, fixed_memory="a rule", recent_context_token_budget=4000)
    chat.seed(HISTORY)
    chat.ask("nothing is broken yet")
    before = broken.log_size()
    for table in _tables(broken):
        _execute(broken, f"ALTER TABLE {table} RENAME TO lost_{table}")
    for turn in range(2):
        request = chat.ask(f"broken {turn} of {chat.number}")
        assert "a rule" in request.dump() and len(request.messages) < SENT_WHOLE
    assert chat.stored[: len(HISTORY)] == HISTORY and len(chat.stored) == len(HISTORY) + 6
    # Reading and writing fail apart, and each is reported once.
    assert 1 <= len(_complaints(broken, before)) <= 2


# Our own code


def test_without_the_vocabulary_requests_are_still_cut(broken: HostProcess) -> None:
    _sabotage(broken, "break", what="vocabulary")
    before = broken.log_size()
    broken.web.reload_plugin()
    chat = Session(broken, recent_context_token_budget=4000)
    chat.seed(HISTORY)
    requests = _talk(chat)
    assert all(len(r.messages) < SENT_WHOLE for r in requests)
    (line,) = _complaints(broken, before)
    assert "vocabulary" in line
    codes = [w["code"] for w in broken.web.api("GET", "health")[1]["warnings"]]
    assert codes == ["vocabulary"]


@pytest.mark.parametrize("hook", ["prepare", "build", "finish"])
def test_a_hook_of_ours_that_raises_leaves_chat_and_history(broken: HostProcess, hook: str) -> None:
    chat = Session(broken, fixed_memory="a rule", recent_context_token_budget=4000)
    chat.seed(HISTORY)
    _sabotage(broken, "break", what=hook)
    before = broken.log_size()
    (request,) = _talk(chat, 1)
    assert (len(request.messages) >= SENT_WHOLE) == (hook == "build")
    assert len(_complaints(broken, before)) == 1
    _sabotage(broken, "mend")
    chat.ask(f"mended in {chat.number}")
    assert chat.stored[: len(HISTORY)] == HISTORY
    assert len(chat.stored) == len(HISTORY) + 4


def test_a_host_without_a_message_list_still_gets_the_sections(broken: HostProcess) -> None:
    chat = Session(broken, fixed_memory="a rule")
    chat.seed(HISTORY)
    _sabotage(broken, "break", what="messages")
    before = broken.log_size()
    _, *later = _talk(chat, 3)
    assert all("a rule" in system_text(r) and len(r.messages) > SENT_WHOLE for r in later)
    assert len(_complaints(broken, before)) == 1
    codes = [w["code"] for w in broken.web.api("GET", "health")[1]["warnings"]]
    assert codes == ["host_features"]


def test_reloads_under_load_leak_nothing(broken: HostProcess) -> None:
    before = _sabotage(broken, "held")
    chats = [Session(broken) for _ in range(4)]
    for chat in chats:
        chat.seed(HISTORY)
    for turn in range(5):
        for chat in chats:
            chat.start(f"load {turn} of {chat.number} #slow:0.2")
        broken.web.reload_plugin()
    for chat in chats:
        broken.qq.wait_reply(chat.target, 4)
        chat.finish()
    # What is noted behind the last replies ends by itself; the vocabulary may still have
    # been loading before.
    wait_until(lambda: _sabotage(broken, "held")["tasks"] <= before["tasks"], "all tasks")
    assert _sabotage(broken, "held") | {"tasks": 0} == before | {"tasks": 0}
    for chat in chats:
        assert chat.stored[: len(HISTORY)] == HISTORY
        said = [m for m in chat.stored[len(HISTORY) :] if m["role"] == "user"]
        assert len(said) == 5


# The user's own changes while a request runs


def _reset(chat: Session) -> None:
    already = len(chat.replies())
    chat.start("/reset")
    chat.host.qq.wait_reply(chat.target, already)


def _delete(chat: Session) -> None:
    body = {"user_id": chat.origin, "cid": chat.conversation_id}
    chat.host.web.post("/api/conversation/delete", body)


def _edit(chat: Session) -> None:
    history = json.dumps(HISTORY[:4])
    body = {"user_id": chat.origin, "cid": chat.conversation_id, "history": history}
    chat.host.web.post("/api/conversation/update_history", body)


@pytest.mark.parametrize("version", _grouped("breakable"))
# No reset before a model error: the reset stops the request, and whether the host
# notices the stop or the error first is a race of its own.
@pytest.mark.parametrize(
    ("change", "end"),
    [
        pytest.param(_reset, "", id="reset"),
        pytest.param(_delete, "", id="delete"),
        pytest.param(_delete, "#error", id="delete-error"),
        pytest.param(_edit, "", id="edit"),
        pytest.param(_edit, "#error", id="edit-error"),
    ],
)
def test_a_change_by_the_user_ends_as_on_the_host_alone(
    hosts: HostPool, version: str, change: Callable[[Session], None], end: str
) -> None:
    results = []
    for profile in (BARE, BREAKABLE):
        chat = Session(hosts.get(version, profile))
        chat.seed(HISTORY)
        gate_id = f"{profile.name}{chat.number}"
        gate = chat.host.model.gate(gate_id)
        already = len(chat.replies())
        chat.start(f"one more question {end} #gate:{gate_id}")
        gate.wait_entered()
        change(chat)
        gate.release()
        if change is not _reset:
            chat.host.qq.wait_reply(chat.target, already)
        chat.finish()
        chat.say("and the next message")
        results.append([comparable(c.messages) for c in _conversations(chat)])
    alone, ours = results
    assert ours == alone


def _conversations(chat: Session) -> list:
    return chat.host.store.conversations(chat.origin)


# The host's own settings


@pytest.mark.parametrize("version", _grouped("breakable"))
def test_settings_of_every_configuration_profile_are_checked(hosts: HostPool, version: str) -> None:
    host = hosts.get(version, BREAKABLE)
    unwanted = {
        "provider_settings": {
            "context_limit_reached_strategy": "llm_compress",
            "max_context_length": 7,
        },
        "agent_runner": {
            "config": {"compression": {"overflow_strategy": "llm_compress", "max_turns": 7}}
        },
    }
    before = host.web.api("GET", "health")[1]["warnings"]
    config = host.web.get("/api/config/abconf", id="default")["config"]
    body = {"name": "夜班", "config": merged(config, unwanted)}
    profile = host.web.post("/api/config/abconf/new", body)["conf_id"]
    try:
        warnings = host.web.api("GET", "health")[1]["warnings"]
    finally:
        host.web.post("/api/config/abconf/delete", {"id": profile})
    added = [w for w in warnings if w not in before]
    assert {w["code"] for w in added} == {"host_strategy", "host_turn_limit"}
    assert all(w["message"].count("[夜班]") == 2 for w in added)
    assert host.web.api("GET", "health")[1]["warnings"] == before


# Switched off


@pytest.mark.xdist_group("4.29.3-truncate")
def test_a_long_chat_is_answered_after_the_plugin_is_switched_off(hosts: HostPool) -> None:
    # The older host alone does not get below its model's limit in one go.
    host = hosts.get("4.29.3", TRUNCATE)
    chat = Session(host)
    chat.seed(mixed_history(400))
    mark = f"of {chat.number}"

    def refuse_long(body: dict) -> Reply | None:
        size = len(json.dumps(body["messages"]))
        ours = kind_of(body) == "chat" and mark in str(body["messages"][-1])
        return Reply("context too long", status=400) if ours and size > 20_000 else None

    remove = host.model.add_script(refuse_long)
    chat.say(f"first {mark}")
    host.web.switch_plugin(False)
    try:
        chat.say(f"second {mark}")
    finally:
        host.web.switch_plugin(True)
        remove()
    assert [reply.startswith("Noted, answer") for reply in chat.replies()] == [True, True]
