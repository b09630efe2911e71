"""Shows the plugin at work in a real AstrBot, with a scripted model and no network.

``make demo`` holds a conversation over QQ, prints what every request holds, lets
a fact leave the window, compresses, finds the fact again and looks at the host's
stored history. Then the WebUI stays open; ``DEMO_EXIT=1`` ends it instead.

Invariants:
- Every number comes from a request as the model received it, counted with the
  plugin's own counter, or from the host's database.
- What is said to be so is checked; the exit code is 1 if anything shown is false.
"""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from . import demo_talk as talk
from .host_process import PASSWORD, USERNAME, HostConfig, HostProcess
from .importable import make_plugin_importable
from .script import text_of
from .scripted_model import RecordedRequest, ScriptedModel

make_plugin_importable()

from astrbot_plugin_context_manager import context_logic as logic  # noqa: E402
from astrbot_plugin_context_manager.tokens import TokenCounter  # noqa: E402

VERSION = os.environ.get("DEMO_VERSION", "4.29.3")
BUDGET = 4000
USER_ID = 900
SESSION = f"qq:FriendMessage:{USER_ID}"
TARGET = f"private:{USER_ID}"
# What a repeated prefix is taken to cost in the last comparison.
CACHED_PRICE = 0.1
SECTIONS = ("system", "memory", "summary", "tools", "window", "current")
HEAD = (
    f"{'turn':>4} |{''.join(f'{name:>8}' for name in SECTIONS)} |{'prompt':>7} |"
    f"{'turns sent':>11}{'left out':>9} |{'repeat':>7} |{'Σ sent':>8}{'Σ all':>8}"
)


@dataclass
class Spent:
    """Prompt tokens of a row of requests, and those that repeat the one before."""

    total: int = 0
    repeated: int = 0
    last: list[tuple[str, int]] = field(default_factory=list)

    def add(self, request: list[tuple[str, int]], count_text: Callable[[str], int]) -> float:
        """Adds a request's pieces; returns the repeated share of it."""
        repeated = 0
        for (old, _), (new, tokens) in zip(self.last, request, strict=False):
            if old != new:
                same = os.path.commonprefix([old, new])  # noqa: RUF071  texts, not paths
                repeated += count_text(same)
                break
            repeated += tokens
        size = sum(tokens for _, tokens in request)
        self.last, self.total, self.repeated = request, self.total + size, self.repeated + repeated
        return repeated / size

    @property
    def cost(self) -> float:
        """Tokens at full price, with the repeated ones at the cached price."""
        return self.total - self.repeated * (1 - CACHED_PRICE)


@dataclass
class Sent:
    """One request, taken apart."""

    sections: dict[str, int]
    turns: int
    pieces: list[tuple[str, int]]
    everything: list[tuple[str, int]]

    @property
    def prompt(self) -> int:
        """Tokens of the whole request."""
        return sum(self.sections.values())


class Demo:
    """The conversation, its numbers and its claims."""

    def __init__(self, host: HostProcess, model: ScriptedModel) -> None:
        self.host, self.model = host, model
        self.tokens = TokenCounter()
        self.sent, self.all = Spent(), Spent()
        self.said: list[tuple[str, str]] = []
        self.largest = 0
        self.false: list[str] = []
        asyncio.run(self.tokens.load())

    def claim(self, text: str, holds: bool) -> None:
        """Prints a statement and whether it is so."""
        print(f"  {'✓' if holds else '✗ FALSE:'} {text}")
        if not holds:
            self.false.append(text)

    # -- talking ------------------------------------------------------------

    def say(self, text: str) -> str:
        """Sends a private message; returns the answer once the host is done with it."""
        already = len(self.host.qq.replies(TARGET))
        self.host.qq.send_private(USER_ID, text, nickname="小明")
        answer = self.host.qq.wait_reply(TARGET, already).text
        self.host.web.wait_settled(SESSION)
        return answer

    def turn(self, text: str) -> RecordedRequest:
        """One turn of the talk; prints its row."""
        before = self.history()
        self.said.append((text, self.say(text)))
        request = self.model.requests(kind="chat")[-1]
        sent = self.take_apart(request, before)
        repeat = self.sent.add(sent.pieces, self.tokens.count_text)
        self.all.add(sent.everything, self.tokens.count_text)
        cells = "".join(f"{sent.sections[name]:>8}" for name in SECTIONS)
        left_out = len(self.said) - 1 - sent.turns
        print(
            f"{len(self.said):>4} |{cells} |{sent.prompt:>7} |{sent.turns:>11}{left_out:>9} |"
            f"{repeat:>7.0%} |{self.sent.total:>8}{self.all.total:>8} | {text[:12]}"
        )
        self.largest = max(self.largest, sent.prompt)
        return request

    def history(self) -> list[dict]:
        """The session's history as the host has stored it."""
        found = self.host.store.conversations(SESSION)
        stored = found[-1].messages if found else []
        return [message for message in stored if message["role"] in ("user", "assistant")]

    # -- numbers ------------------------------------------------------------

    def take_apart(self, request: RecordedRequest, before: list[dict]) -> Sent:
        """Sections of a request, and the request that holds all of the history."""
        tools = request.body.get("tools") or []
        system, *rest = request.messages
        current = max(i for i, m in enumerate(rest) if m["role"] == "user")
        prompt, memory, summary = _parts(text_of(system))
        whole, count = self.tokens.count_message(system), self.tokens.count_text
        sizes = (
            whole - count(memory) - count(summary),
            count(memory),
            count(summary),
            self.tokens.count_tools(tools),
            self.tokens.count_messages(rest[:current]),
            self.tokens.count_messages(rest[current:]),
        )
        turns = sum(1 for message in rest[:current] if message["role"] == "user")
        bare = {"role": "system", "content": prompt}
        everything = self.pieces(tools, [bare, *before, *rest[current:]])
        pieces = self.pieces(tools, request.messages)
        return Sent(dict(zip(SECTIONS, sizes, strict=True)), turns, pieces, everything)

    def pieces(self, tools: list[dict], messages: Sequence[dict]) -> list[tuple[str, int]]:
        """A request in the order a model reads it, each piece with its tokens."""
        count = self.tokens.count_message
        return [
            (str(tools), self.tokens.count_tools(tools)),
            *((f"{m['role']}\n{text_of(m)}", count(m)) for m in messages),
        ]

    # -- steps --------------------------------------------------------------

    def set_up_session(self) -> None:
        """Fixed memory and budget, through the page's API."""
        api = self.host.web.api
        _, row = api("GET", "session", session_id=SESSION)
        changes = {"fixed_memory": talk.FIXED_MEMORY, "recent_context_token_budget": BUDGET}
        body = {"session_id": SESSION, "revision": row["revision"], "changes": changes}
        status, saved = api("POST", "session", body)
        holds = status == 200 and all(saved[name] == value for name, value in changes.items())
        self.claim(f"已通过页面接口设置固定记忆，预算 {BUDGET} tokens", holds)

    def talk(self) -> RecordedRequest:
        """Thirty turns; returns the last request."""
        print(f"\n{HEAD}")
        self.turn(talk.HELLO)
        self.set_up_session()
        for text in talk.TURNS:
            request = self.turn(text)
        holds = self.largest <= BUDGET
        self.claim(f"最大的请求是 {self.largest} tokens，没有超过预算 {BUDGET}", holds)
        return request

    def compress(self) -> None:
        """Compresses on command and counts what that call reads."""
        already = len(self.host.qq.replies(TARGET))
        print(f"  机器人：{self.say('/立即压缩')}")
        print(f"  机器人：{self.host.qq.wait_reply(TARGET, already + 1).text}")
        _, row = self.host.web.api("GET", "session", session_id=SESSION)
        print("  AI 摘要：\n" + "\n".join(f"    {line}" for line in row["summary"].split("\n")))
        for request in self.model.requests(kind="plain"):
            self.sent.total += self.tokens.count_messages(request.messages)
        self.claim(
            "摘要里有猫的名字和生日", "团子" in row["summary"] and "3月14日" in row["summary"]
        )

    def show_history(self) -> None:
        """The host's own database holds all that was said and nothing else."""
        stored = self.history()
        expected = [text for pair in self.said for text in pair]
        found = [_first_part(message) for message in stored]
        print(f"  AstrBot 数据库里：{len(stored)} 条消息，说过的：{len(expected)} 条")
        print(f"  第一条：{found[0]}\n  最后一条：{found[-1]}")
        self.claim("每一条都在，内容和顺序都相同", found == expected)
        raw = "\n".join(text_of(message) for message in stored)
        ours = (logic.FIXED_MARKER, logic.SUMMARY_MARKER, logic.FIXED_FRAME, logic.SUMMARY_FRAME)
        clean = not any(text in raw for text in (*ours, talk.FIXED_MEMORY))
        self.claim("里面没有插件的任何文字（标记、固定记忆、摘要）", clean)

    def show_cost(self) -> None:
        """What was sent, beside sending everything each time."""
        for name, spent in (("本插件（含压缩）", self.sent), ("每次发送全部历史", self.all)):
            print(
                f"  {name}：prompt 共 {spent.total} tokens，其中重复前缀 {spent.repeated}；"
                f"重复部分按 {CACHED_PRICE:.0%} 计价约合 {spent.cost:.0f}"
            )
        self.claim("发送的 prompt tokens 比每次发送全部历史少", self.sent.total < self.all.total)


def _parts(system: str) -> tuple[str, str, str]:
    prompt, found, rest = system.partition(logic.FIXED_MARKER)
    memory, found_summary, summary = (found + rest).partition(logic.SUMMARY_MARKER)
    return prompt.rstrip(), memory, found_summary + summary


def _first_part(message: dict) -> str:
    """The words of a stored message, without what the host adds behind them."""
    content = message["content"]
    return content if isinstance(content, str) else content[0]["text"]


def run(demo: Demo) -> None:
    """All steps in order."""
    print("一、对话。每行是模型实际收到的一次请求（tokens 为插件的估算）。")
    print("    repeat = 与上一次请求开头相同、提示词缓存可以复用的比例；Σ = 累计 prompt tokens，")
    print("    sent 为实际发送，all 为不用插件、每次发送全部历史。")
    request = demo.talk()
    print(f"\n二、第 2 轮说过“{talk.FACT}”现在问：{talk.QUESTION}")
    print(f"  机器人：{demo.said[-1][1]}")
    demo.claim("这次请求里已经没有“团子”", "团子" not in request.dump())
    demo.claim("模型因此不知道", demo.said[-1][1] == talk.UNKNOWN)
    print("\n三、发送指令 /立即压缩")
    demo.compress()
    print(f"\n四、再问一次\n{HEAD}")
    request = demo.turn(talk.QUESTION)
    print(f"  机器人：{demo.said[-1][1]}")
    system, *rest = request.messages
    summary = _parts(text_of(system))[2]
    demo.claim("“团子”回到了请求里，在 AI 摘要部分", "团子" in summary)
    demo.claim("而近期对话里仍然没有", not any("团子" in text_of(m) for m in rest))
    demo.claim("模型答对了", "团子" in demo.said[-1][1] and "3月14日" in demo.said[-1][1])
    print("\n五、AstrBot 保存的聊天记录")
    demo.show_history()
    print("\n六、累计")
    demo.show_cost()


def stay_open(host: HostProcess) -> None:
    """Keeps the WebUI open until the demo is interrupted."""
    print(f"\nWebUI：{host.web.url}\n用户名：{USERNAME}\n密码：{PASSWORD}")
    print("按 Ctrl+C 结束。")
    with contextlib.suppress(KeyboardInterrupt):
        while host.running:
            time.sleep(0.5)


def main() -> int:
    """Runs the demo; returns the exit code."""
    sys.stdout.reconfigure(encoding="utf-8", line_buffering=True)
    # Both must end the host too, also where a shell has set them to be ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    print(f"正在启动 AstrBot {VERSION}（离线模型，临时文件夹）……")
    with ScriptedModel(strict=True) as model:
        model.add_script(talk.chat_reply)
        model.plain_reply = talk.summarise
        with HostProcess(HostConfig(VERSION), model) as host:
            demo = Demo(host, model)
            run(demo)
            print(f"\n{'以上全部属实。' if not demo.false else f'不属实：{demo.false}'}")
            if os.environ.get("DEMO_EXIT") != "1":
                stay_open(host)
    return 1 if demo.false else 0


if __name__ == "__main__":
    sys.exit(main())
