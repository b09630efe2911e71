"""Thirty turns through a real AstrBot, and what the plugin sends for each of them.

Starts a host, a scripted model and a WebUI chat; prints after every turn what
the model received, compresses in the middle, and shows at the end that the
host's stored history is whole. Then the WebUI stays open, unless ``DEMO_EXIT=1``.

Invariants:
- Every number comes from the requests as the model's server received them and
  from the host's database, none from the plugin's own reports.
"""

import asyncio
import contextlib
import os
import re
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from .host_process import PASSWORD, USERNAME, HostConfig, HostProcess
from .script import Reply, kind_of, last_user_text, text_of
from .scripted_model import ScriptedModel
from .setup_hosts import ROOT

VERSION = os.environ.get("DEMO_VERSION", "4.29.3")
TURNS = 30
COMPRESS_AFTER = 20
BUDGET = 4000
FACT_TURN = 2
FACT = "仓库钥匙编号 ZX-4471"
MEMORY = "称呼用户为林先生；回答用中文，尽量简短。"
TOPICS = ("货架的尺寸", "送货的时间", "发票的抬头", "仓库的温度", "盘点的顺序", "标签的颜色")
SECTIONS = ("===== Fixed Memory =====", "===== AI Summary =====")


def question(turn: int) -> str:
    """What the user says in one turn; the fact comes early and never again."""
    if turn == FACT_TURN:
        return f"第{turn}问：请记住，{FACT}，由王师傅保管。"
    topic = TOPICS[turn % len(TOPICS)]
    return f"第{turn}问：关于{topic}，我想听听第{turn}个方案，和前一个比有什么好处和坏处？"


def answer(body: dict) -> Reply | None:
    """The model's side of the chat, and its summaries."""
    if kind_of(body) == "plain":
        kept = re.findall(r"请记住，([^。]+)。", last_user_text(body))
        facts = "\n".join(f"- {fact}" for fact in dict.fromkeys(kept))
        return Reply(f"## 事实与人物 / Facts and people\n{facts}\n- 用户在逐个比较仓库的方案")
    number = re.search(r"第(\d+)问", last_user_text(body))
    if number is None or kind_of(body) != "chat":
        return None
    detail = "好处是省地方、省人手，坏处是要先买新的货架，还要给大家讲一遍怎么用。"
    return Reply(f"第{number[1]}答：这个方案可以这样做。" + detail * 3)


@dataclass(frozen=True)
class Sent:
    """One request, taken apart."""

    system: int
    fixed_memory: int
    summary: int
    tools: int
    window: int
    current: int
    turns: int

    @property
    def total(self) -> int:
        """Tokens of the whole request."""
        parts = (self.system, self.fixed_memory, self.summary, self.tools, self.window)
        return sum(parts) + self.current


def take_apart(body: dict, counter: object) -> Sent:
    """Counts the sections of a request with the plugin's own counter."""
    system, *rest = body["messages"]
    *window, current = rest
    text = text_of(system)
    marks = [text.find(mark) for mark in SECTIONS]
    ends = [m for m in (*marks, len(text)) if m >= 0]
    base = text[: min(ends)]
    sections = [
        text[start : min(e for e in ends if e > start)] if start >= 0 else "" for start in marks
    ]
    return Sent(
        system=counter.count_message({**system, "content": base}),
        fixed_memory=counter.count_text(sections[0]),
        summary=counter.count_text(sections[1]),
        tools=counter.count_tools(body.get("tools") or []),
        window=sum(counter.count_message(message) for message in window),
        current=counter.count_message(current),
        turns=sum(message["role"] == "user" for message in window),
    )


def load_counter() -> object:
    """Returns the plugin's token counter with its vocabulary loaded."""
    folder = Path(tempfile.mkdtemp(prefix="context-manager-demo-"))
    (folder / "astrbot_plugin_context_manager").symlink_to(ROOT, target_is_directory=True)
    sys.path.insert(0, str(folder))
    from astrbot_plugin_context_manager.tokens import TokenCounter

    counter = TokenCounter()
    asyncio.run(counter.load())
    return counter


class Demo:
    """The conversation and its report."""

    def __init__(self, host: HostProcess, counter: object) -> None:
        self.host, self.counter = host, counter
        self.chat = host.web.new_session()
        self.origin = host.web.session_origin(self.chat)
        self.failures: list[str] = []

    def run(self) -> None:
        """Plays all turns and checks what must be true."""
        print(f"AstrBot {VERSION}, budget {BUDGET} tokens, {TURNS} turns\n")
        print("turn  total  system  tools  memory  summary  window  current  sent  left out")
        for turn in range(1, TURNS + 1):
            self._turn(turn)
            if turn == 1:
                self._save_memory()
            if turn == COMPRESS_AFTER:
                self._compress()
        self._check_fact()
        self._check_history()

    def _say(self, text: str) -> str:
        run = self.host.web.chat(self.chat, text)
        self.host.web.wait_settled(self.origin)
        return run.text.strip()

    def _turn(self, turn: int) -> None:
        self._say(question(turn))
        sent = take_apart(self._request(turn), self.counter)
        left_out = turn - 1 - sent.turns
        print(
            f"{turn:>4}{sent.total:>7}{sent.system:>8}{sent.tools:>7}{sent.fixed_memory:>8}"
            f"{sent.summary:>9}{sent.window:>8}{sent.current:>9}{sent.turns:>6}{left_out:>10}"
        )
        self._expect(sent.total <= BUDGET, f"turn {turn}: {sent.total} tokens sent")

    def _request(self, turn: int) -> dict:
        found = self.host.model.requests(f"第{turn}问", "chat")
        return next(r.body for r in found if f"第{turn}问" in last_user_text(r.body))

    def _save_memory(self) -> None:
        _, row = self.host.web.api("GET", "session", session_id=self.origin)
        body = {
            "session_id": self.origin,
            "revision": row["revision"],
            "changes": {"fixed_memory": MEMORY},
        }
        status, _ = self.host.web.api("POST", "session", body)
        self._expect(status == 200, "the fixed memory was not saved")

    def _compress(self) -> None:
        print(f"\n> /立即压缩\n{self._say('/立即压缩')}\n")
        deadline = time.monotonic() + 30
        while self._job()["state"] == "running" and time.monotonic() < deadline:
            time.sleep(0.05)
        self._expect(self._job()["state"] == "done", f"compression: {self._job()}")

    def _job(self) -> dict:
        return self.host.web.api("GET", "session/compress", session_id=self.origin)[1]

    def _check_fact(self) -> None:
        print(f"\nthe fact of turn {FACT_TURN}: {FACT}")
        for turn in (COMPRESS_AFTER, TURNS):
            system, *rest = (text_of(m) for m in self._request(turn)["messages"])
            places = [("summary", system), ("window", "\n".join(rest))]
            found = [name for name, text in places if FACT in text]
            print(f"  request of turn {turn}: {'in the ' + found[0] if found else 'not sent'}")
            wanted = ["summary"] if turn == TURNS else []
            self._expect(found == wanted, f"turn {turn}: the fact is in {found}")

    def _check_history(self) -> None:
        stored = self.host.store.conversations(self.origin)[0]
        asked = [text_of(m) for m in stored.messages if m["role"] == "user"]
        answered = [text_of(m) for m in stored.messages if m["role"] == "assistant"]
        turns = range(1, TURNS + 1)
        whole = len(asked) == len(answered) == TURNS and all(
            question(turn) in asked[turn - 1] and f"第{turn}答" in answered[turn - 1]
            for turn in turns
        )
        added = [mark for mark in (*SECTIONS, MEMORY) if mark in stored.raw]
        print(f"\nstored history: {len(asked)} questions, {len(answered)} answers, in order: {whole}")
        print(f"text of the plugin in it: {added or 'none'}")
        self._expect(whole and not added, "the stored history is not whole")

    def _expect(self, holds: bool, problem: str) -> None:
        if not holds:
            self.failures.append(problem)


def _stay_open(host: HostProcess) -> None:
    print(f"\nWebUI: {host.web.url}   login: {USERNAME} / {PASSWORD}   end: Ctrl+C", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        while host.running:
            time.sleep(0.5)


def main() -> int:
    """Runs the demo; returns 1 if something that must be true was not."""
    config = HostConfig(VERSION, plugin_config={"recent_context_token_budget": BUDGET})
    with ScriptedModel() as model:
        model.add_script(answer)
        model.title = "仓库方案"
        with HostProcess(config, model) as host:
            demo = Demo(host, load_counter())
            demo.run()
            for failure in demo.failures:
                print(f"NOT AS PROMISED: {failure}")
            if os.environ.get("DEMO_EXIT") != "1":
                _stay_open(host)
    return 1 if demo.failures else 0


if __name__ == "__main__":
    sys.exit(main())
