"""Whenever a host is killed, what it had stored is there once after the next start."""

import contextlib
import json
import os
import random
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import httpx
import pytest

from dev.host_process import HostConfig, HostProcess
from dev.scripted_model import ScriptedModel
from dev.webui import WebError

from .archives import assert_archive_agrees, catch_up, rows
from .histories import brief, mixed_history
from .profiles import COMPRESS, MAX_TURNS, ONE_TURN, TRUNCATE, VERSIONS, Profile
from .sessions import DATABASE, Session, wait_until

SEED = int(os.environ.get("SEED", random.SystemRandom().randrange(10**6)))
# Kills a round; the full run has ROUNDS of them on each host, 300 in all.
FEW, MANY = 4, int(os.environ.get("KILLS", 15))
ROUNDS = int(os.environ.get("ROUNDS", 10))
# Shares of the kills: right behind a save, where a cut may not be repaired yet, and while
# the plugin is reloaded, which leaves cuts on the older host too.
AT_A_SAVE, RELOADS = 0.6, 0.4
HISTORY = mixed_history(20, 900)


@pytest.fixture(
    params=[pytest.param(v, marks=pytest.mark.xdist_group(f"{v}-crash")) for v in VERSIONS]
)
def mortal(request: pytest.FixtureRequest, model: ScriptedModel) -> Iterator[HostProcess]:
    """A host of its own that a test may kill."""
    config = HostConfig(version=request.param, plugin_config={"recent_context_token_budget": 4000})
    with HostProcess(config, model) as host:
        yield host


# In the very moment in which a short list is stored and not yet repaired


def _die_with_a_short_list(host: HostProcess, channel: str = "private") -> Session:
    """Kills the host when it has stored a cut list that nothing has repaired."""
    chat = Session(host, channel)
    chat.seed(HISTORY)
    gate_id = f"crash{chat.number}"
    gate = host.model.gate(gate_id)
    chat.start(f"the fatal question #gate:{gate_id}")
    gate.wait_entered()
    # Whoever holds the lock next keeps the repair waiting.
    host.web.probe("hold_lock", session_id=chat.origin)
    host.web.wait_at_lock(chat.origin, 2)
    host.web.reload_plugin()
    gate.release()
    wait_until(lambda: len(chat.stored) < len(HISTORY), "a short list in the host")
    host.kill()
    _forget_runs(chat)
    return chat


def _forget_runs(chat: Session) -> None:
    """The answers that the WebUI waited for came to an end with the host."""
    for run in chat._runs:
        run.thread.join(10)
    chat._runs.clear()


@pytest.mark.full
@pytest.mark.parametrize("channel", ["private", "web_plain"])
def test_a_short_list_is_repaired_at_the_next_start(mortal: HostProcess, channel: str) -> None:
    chat = _die_with_a_short_list(mortal, channel)
    mortal.start()
    wait_until(lambda: len(chat.stored) > len(HISTORY), "the repair")
    assert chat.stored[: len(HISTORY)] == HISTORY
    added = [m["role"] for m in chat.stored[len(HISTORY) :] if m["role"] != "_checkpoint"]
    assert added == ["user", "assistant"]
    assert rows(mortal, "SELECT * FROM journal_requests") == []
    before = chat.stored
    chat.say("one more")
    assert chat.stored[: len(before)] == before
    assert_archive_agrees(mortal, chat.origin)


@pytest.mark.full
def test_a_message_that_comes_before_the_repair_sends_and_saves_the_whole(
    mortal: HostProcess,
) -> None:
    chat = _die_with_a_short_list(mortal)
    mortal.start(connect=False)
    mortal.qq.wait_connected()
    chat.say("at once")
    assert chat.stored[: len(HISTORY)] == HISTORY
    users = [m for m in chat.stored[len(HISTORY) :] if m["role"] == "user"]
    assert len(users) == 2


@pytest.mark.full
@pytest.mark.parametrize("change", ["edit", "reset", "delete"])
def test_what_the_user_changed_after_a_crash_stays(mortal: HostProcess, change: str) -> None:
    chat = _die_with_a_short_list(mortal)
    short = chat.stored
    if change == "edit":
        short[0] = {**short[0], "content": "edited by the user"}
        mortal.store.overwrite(chat.conversation_id, short, 0)
    elif change == "reset":
        mortal.store.overwrite(chat.conversation_id, [], 0)
    else:
        with closing(sqlite3.connect(mortal.store.path)) as db, db:
            db.execute("DELETE FROM conversations WHERE user_id = ?", (chat.origin,))
    mortal.start()
    wait_until(lambda: rows(mortal, "SELECT * FROM journal_requests") == [], "the check")
    assert chat.stored == {"edit": short, "reset": [], "delete": []}[change]


@pytest.mark.full
def test_a_corrupt_journal_leaves_the_chat_as_it_is_and_says_so(mortal: HostProcess) -> None:
    chat = _die_with_a_short_list(mortal)
    short = chat.stored
    with closing(sqlite3.connect(mortal.plugin_data / DATABASE)) as db, db:
        db.execute("UPDATE journal_parts SET body = ?", (b"no zlib",))
    before = mortal.log_size()
    mortal.start()
    wait_until(lambda: rows(mortal, "SELECT * FROM journal_requests") == [], "the check")
    assert chat.stored == short
    assert "cannot be repaired" in mortal.log(before)
    chat.say("goes on")
    assert chat.stored[: len(short)] == short


def test_a_reply_is_whole_after_a_crash_right_behind_its_save(model: ScriptedModel) -> None:
    """A tool that answers by itself leaves a short list on this host, without any reload."""
    config = HostConfig(plugin_config={"recent_context_token_budget": 4000})
    with HostProcess(config, model) as host:
        chat = Session(host)
        chat.seed(HISTORY)
        gate = model.gate(f"answers{chat.number}")
        chat.start(f"the question #tool:answer_user*1 #gate:answers{chat.number}")
        gate.wait_entered()
        host.web.probe("hold_lock", session_id=chat.origin)
        host.web.wait_at_lock(chat.origin, 2)
        gate.release()
        wait_until(lambda: len(chat.stored) < len(HISTORY), "a short list in the host")
        host.kill()
        host.start()
        wait_until(lambda: len(chat.stored) > len(HISTORY), "the repair")
        assert chat.stored[: len(HISTORY)] == HISTORY
        chat.say("one more")
        assert_archive_agrees(host, chat.origin)


# While the next message is answered already, and where the host cuts by itself


def _assert_the_turn_is_whole(chat: Session, committed: list[dict]) -> None:
    """After a start: the history, and behind it all that was saved of the turn, once."""
    chat.host.start()
    wait_until(lambda: chat.stored[: len(HISTORY)] == HISTORY, "the repair")
    asked, *added = chat.stored[len(HISTORY) :]
    assert asked["role"] == "user" and "the fatal question" in json.dumps(asked)
    assert added == committed[len(committed) - len(added) :]
    assert not [m for m in added if m["role"] == "user"]
    before = chat.stored
    chat.say("one more")
    assert chat.stored[: len(before)] == before
    assert_archive_agrees(chat.host, chat.origin)


@pytest.mark.full
def test_a_turn_is_whole_after_a_crash_while_the_next_message_is_answered(
    mortal: HostProcess,
) -> None:
    chat = Session(mortal, "group")
    chat.seed(HISTORY)
    gates = [mortal.model.gate(f"crash{chat.number}x{n}") for n in range(2)]
    chat.start(f"the fatal question #gate:crash{chat.number}x0")
    gates[0].wait_entered()
    chat.start(f"the next question #gate:crash{chat.number}x1", sender=1)
    mortal.web.wait_at_lock(chat.origin, 2)
    mortal.web.reload_plugin()
    gates[0].release()
    gates[1].wait_entered()
    committed = chat.stored
    assert committed[: len(HISTORY)] != HISTORY
    mortal.kill()
    _assert_the_turn_is_whole(chat, committed)


@pytest.mark.full
@pytest.mark.parametrize(
    ("profile", "last_step"),
    [(MAX_TURNS, 7), (TRUNCATE, 7), (ONE_TURN, 7), (COMPRESS, 2)],
    ids=lambda value: getattr(value, "name", None),
)
def test_a_list_that_the_host_cut_once_more_is_repaired_after_a_crash(
    model: ScriptedModel, profile: Profile, last_step: int
) -> None:
    """A failed answer in the WebUI leaves a short list on this host, without any reload."""
    with HostProcess(replace(profile, budget=8000).config("4.29.3"), model) as host:
        chat = Session(host, "web_plain")
        chat.seed(HISTORY)
        gate = model.gate(f"crash{chat.number}")
        words = f"#tool:{profile.tool}*6 #error@{last_step} #gate:crash{chat.number}@2"
        chat.start(f"the fatal question {words}")
        gate.wait_entered()
        noted = rows(host, "SELECT * FROM journal_requests")
        host.web.probe("hold_lock", session_id=chat.origin)
        host.web.wait_at_lock(chat.origin, 2)
        gate.release()
        wait_until(lambda: rows(host, "SELECT * FROM journal_requests") != noted, "a new note")
        committed = chat.stored
        assert committed[: len(HISTORY)] != HISTORY
        host.kill()
        _forget_runs(chat)
        _assert_the_turn_is_whole(chat, committed)


def test_a_request_that_a_reload_meets_while_it_is_built_is_in_the_journal(
    model: ScriptedModel,
) -> None:
    """Its recall waits for an embedding provider that hangs."""
    config = HostConfig(with_embeddings=True, plugin_config={"recent_context_token_budget": 4000})
    with HostProcess(config, model) as host:
        chat = Session(host)
        chat.seed(HISTORY)
        chat.say("hello")
        assert chat.change(memory_enabled=True)[0] == 200
        memory = {"session_id": chat.origin, "text": "the train left on time"}
        assert host.web.api("POST", "memories", memory)[0] == 200
        gate = model.gate(f"crash{chat.number}")
        model.embeddings.mode = "hang"
        asked = f"when did the train leave? #gate:crash{chat.number}"
        chat.start(asked)
        wait_until(
            lambda: any(asked[:20] in "".join(c) for c in model.embeddings.calls), "a recall"
        )
        host.web.reload_plugin()
        gate.wait_entered()
        model.embeddings.mode = "ok"
        noted = rows(host, "SELECT session_id FROM journal_requests")
        gate.release()
        host.web.wait_settled(chat.origin)
    assert [row["session_id"] for row in noted] == [chat.origin]


# At any moment


class Crowd:
    """Chats of a host that is killed over and over, and what each is known to hold."""

    def __init__(self, host: HostProcess, source: random.Random) -> None:
        self.host, self.random = host, source
        self.chats = [Session(host, c) for c in ("private", "group", "web_stream", "web_plain")]
        self.known: dict[str, list[dict]] = {}
        self.outcomes: Counter[str] = Counter()
        self.number = 0
        # Seconds from a question to its answer, on this machine as busy as it is.
        self.pace = 0.0
        for chat in self.chats:
            chat.seed(HISTORY)
            self.known[chat.origin] = HISTORY

    def greet(self) -> None:
        """Says something in every chat, and sees how long that takes."""
        started = time.monotonic()
        for chat in self.chats:
            chat.say("hello")
            self.known[chat.origin] = chat.stored
        self.pace = (time.monotonic() - started) / len(self.chats)

    def _question(self, delays: tuple[float, ...]) -> str:
        words = ("", "#tool:lookup*1", "#tool:lookup*4", "#error", "#tool:answer_user*1")
        slow = self.random.choice(delays)
        return f"{self._mark} {self.random.choice(words)} #slow:{slow:.2f}"

    @property
    def _mark(self) -> str:
        """What every question before a kill begins with."""
        return f"question before kill {self.number}:"

    def kill_once(self) -> None:
        """Kills the host while some of its chats run, starts it, and checks all of them."""
        self.number += 1
        running = self.random.sample(self.chats, self.random.randint(1, len(self.chats)))
        reloads = self.random.random() < RELOADS
        self.outcomes["kills around a reload"] += reloads
        other = self._ask_all(running, reloads)
        self._wait(running, reloads)
        self.host.kill()
        other.join(10)
        for chat in running:
            _forget_runs(chat)
        self.outcomes["requests running at the kill"] += self._open_requests()
        committed = {chat.origin: chat.stored for chat in self.chats}
        self.host.start()
        for chat in self.chats:
            self.host.web.wait_settled(chat.origin)
            self._check(chat, committed[chat.origin], chat in running)

    def _ask_all(self, running: list[Session], reloads: bool) -> threading.Thread:
        """Starts the chats; in a group a second message waits, and the plugin may be reloaded."""
        for chat in running:
            delays = (self.pace, 2 * self.pace) if reloads else (0, 0.05, 0.2)
            chat.start(self._question(delays))
            if chat.channel == "group":
                chat.start(self._question(delays), sender=1)
        other = threading.Thread(target=self._reload if reloads else lambda: None, daemon=True)
        other.start()
        return other

    def _reload(self) -> None:
        # The kill may meet it half-way.
        with contextlib.suppress(httpx.HTTPError, WebError, ValueError, TimeoutError):
            wait_until(self._open_requests, "a request that is cut", 10 * self.pace)
            self.host.web.reload_plugin()

    def _open_requests(self) -> int:
        return rows(self.host, "SELECT count(*) AS n FROM journal_requests")[0]["n"]

    def _wait(self, running: list[Session], reloads: bool) -> None:
        """Until any moment, or until a few milliseconds behind a save, of a cut if possible."""
        usual = self.pace * (len(running) + 1)
        end = time.monotonic() + self.random.uniform(0, usual)
        if self.random.random() < AT_A_SAVE:
            sizes = [len(chat.stored) for chat in running]
            end = time.monotonic() + 4 * usual
            while time.monotonic() < end:
                changes = [len(c.stored) - size for c, size in zip(running, sizes, strict=True)]
                if min(changes) < 0 or (any(changes) and not reloads):
                    break
                time.sleep(0.001)
            end = time.monotonic() + self.random.uniform(0, 0.01)
        time.sleep(max(0, end - time.monotonic()))

    def _check(self, chat: Session, committed: list[dict], was_running: bool) -> None:
        known, stored = self.known[chat.origin], chat.stored
        first = next((i for i, m in enumerate(committed) if self._mark in json.dumps(m)), None)
        flight = [] if first is None else committed[first:]
        assert stored == [*known, *flight], f"SEED={SEED}\n{brief(committed)}\n\n{brief(stored)}"
        self.outcomes["short lists stored at the kill"] += committed != stored
        self.outcomes["turns in flight kept" if flight else "turns in flight lost"] += was_running
        if was_running:
            chat.say("one more")
            after = chat.stored
            assert after[: len(stored)] == stored, f"SEED={SEED}"
            added = [m["role"] for m in after[len(stored) :] if m["role"] != "_checkpoint"]
            assert added == ["user", "assistant"], f"SEED={SEED}"
            stored = after
        self.known[chat.origin] = stored


@pytest.mark.parametrize(
    ("number", "kills"),
    [(0, FEW), *(pytest.param(n + 1, MANY, marks=pytest.mark.full) for n in range(ROUNDS))],
)
def test_everything_stored_is_there_once_after_kills_at_random_moments(
    mortal: HostProcess, number: int, kills: int, capsys: pytest.CaptureFixture
) -> None:
    crowd = Crowd(mortal, random.Random(f"{SEED} {number} {mortal.config.version}"))
    crowd.greet()
    for _ in range(kills):
        crowd.kill_once()
    for chat in crowd.chats:
        assert_archive_agrees(mortal, chat.origin)
    crowd.outcomes["kills"] = kills
    crowd.outcomes["messages checked"] = sum(map(len, crowd.known.values()))
    with capsys.disabled():
        counts = ", ".join(f"{name}: {count}" for name, count in sorted(crowd.outcomes.items()))
        print(f"\n{mortal.config.version} SEED={SEED} {counts}")


# What the journal costs


@pytest.mark.full
def test_a_request_writes_little_while_its_history_is_held_already(mortal: HostProcess) -> None:
    chat = Session(mortal)
    chat.seed(mixed_history(400, 900))
    chat.say("the first")
    held = rows(mortal, "SELECT start, length(body) AS size FROM journal_parts")
    for number in range(3):
        gate_id = f"size{chat.number}x{number}"
        gate = mortal.model.gate(gate_id)
        already = len(chat.replies())
        chat.start(f"question {number} #tool:lookup_much*2 #gate:{gate_id}")
        gate.wait_entered()
        [row] = rows(mortal, "SELECT * FROM journal_requests")
        assert sum(len(json.dumps(value)) for value in row.values()) < 2000
        now = rows(mortal, "SELECT start, length(body) AS size FROM journal_parts")
        assert now[: len(held)] == held
        gate.release()
        mortal.qq.wait_reply(chat.target, already)
        chat.finish()
        catch_up(mortal, chat.origin)
        assert rows(mortal, "SELECT * FROM journal_requests") == []
        held = rows(mortal, "SELECT start, length(body) AS size FROM journal_parts")
