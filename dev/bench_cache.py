"""How much of what is sent repeats the previous request, and what that costs.

Runs the same chat of many turns over a budget through real hosts: with the plugin,
with the plugin and with tool calls and pictures in the chat, and on the host alone
with both of its own strategies at the same limit.

A provider's cache can only hold what stands before the first byte that differs, so a
request counts as repeated up to the first place where it differs from the request
before it: by characters of its messages as JSON, and by whole blocks of 64 tokens.
"""

import argparse
import base64
import json
import random
import re
import struct
import sys
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from .host_process import HostConfig, HostProcess
from .script import Reply, kind_of, last_user_text
from .scripted_model import RecordedRequest, ScriptedModel

BLOCK = 64
PICTURE_TOKENS = 765
# The host cuts by itself at this share of a model's window.
HOST_THRESHOLD = 0.82
# A provider still holds more than the last request.
HELD_REQUESTS = 4
TOKEN = re.compile(r"[\u3040-\u9fff]|[A-Za-z]{1,4}|\d{1,3}|\s+|.", re.DOTALL)
PARTS = (
    "周末想去爬山", "膝盖有点疼", "晚饭吃什么好", "最近在读三体", "阳台的薄荷黄了", "想学吉他",
    "手机空间不够了", "下个月去成都出差", "早起总是很困难", "咖啡喝多了睡不着", "想换一把椅子",
    "the train leaves at eight", "has anyone tried the new build", "先列一个清单再说",
    "不舒服就停下来休息一天", "问一句有经验的朋友", "放在每天固定的时刻做", "试一两次再看看",
)  # fmt: skip


@dataclass(frozen=True)
class Prices:
    """A public price rule: US dollars for a million tokens, read at ``date``.

    Attributes:
        block: Tokens by which a cached prefix grows.
        least: Shortest prefix that is cached, in tokens.
        write: Price of what is not cached yet.
    """

    name: str
    date: str
    block: int
    least: int
    write: float
    read: float
    output: float


RULES = (
    Prices("DeepSeek V3.2", "2026-04", 64, 64, 0.28, 0.028, 0.42),
    Prices("GPT-5", "2026-06", 128, 1024, 1.25, 0.125, 10.0),
    Prices("Claude Sonnet 4.6 (5 min)", "2026-05", 1, 1024, 3.75, 0.30, 15.0),
)


@dataclass
class Run:
    """One chat that was talked through, and what was sent for it."""

    name: str
    turns: int
    requests: list[RecordedRequest] = field(default_factory=list)

    @property
    def chats(self) -> list[RecordedRequest]:
        """The requests of the chat itself, without calls of the host for its summaries."""
        return [r for r in self.requests if r.kind == "chat"]


def picture(number: int) -> str:
    """A small picture, each one different, as base64."""
    pixels = random.Random(number).randbytes(16 * 16 * 3)
    rows = b"".join(b"\0" + pixels[i : i + 48] for i in range(0, len(pixels), 48))
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", 16, 16, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows)),
        (b"IEND", b""),
    )
    data = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in chunks
    )
    return base64.b64encode(data).decode()


def words(seed: str, parts: int) -> str:
    """A few phrases, the same for the same seed."""
    return "，".join(random.Random(seed).choices(PARTS, k=parts))


def answer(body: dict) -> Reply | None:
    """A short answer; the second request of a turn with a tool call is left to the script."""
    text = last_user_text(body)
    if kind_of(body) != "chat" or "#tool" in text:
        return None
    return Reply(words(text[:40], 4))


def talk(host: HostProcess, name: str, turns: int, rich: bool) -> Run:
    """Talks through one private chat.

    Args:
        host: A running host that no other chat uses meanwhile.
        name: Of the run.
        turns: How many messages are sent.
        rich: Whether every fifth turn calls a tool and every eighth has a picture.
    """
    user, run = 700_001, Run(name, turns)
    before = len(host.model.requests())
    for turn in range(turns):
        text = f"{turn}: {words(f'user {turn}', 2)}"
        if rich and turn % 5 == 2:
            text += f" #tool:lookup #say:{words(f'found {turn}', 4)}"
        already = len(host.qq.replies(f"private:{user}"))
        image = rich and turn % 8 == 4
        segments = [{"type": "image", "data": {"file": f"base64://{picture(turn)}"}}]
        host.qq.send_private(user, text, segments=segments if image else None)
        host.qq.wait_reply(f"private:{user}", already)
        host.web.wait_settled(f"qq:FriendMessage:{user}")
    run.requests = host.model.requests()[before:]
    return run


def measure(run: Run) -> dict:
    """The numbers of one run."""
    chats = [dumped(r.messages) for r in run.chats]
    repeated = sum(common(before, now) for before, now in pairwise(chats))
    tokens = [tokens_of(r) for r in run.requests]
    chat_tokens = [t for t, r in zip(tokens, run.requests, strict=True) if r.kind == "chat"]
    blocks = sum(common(a, b) // BLOCK for a, b in pairwise(chat_tokens))
    sent_blocks = sum(len(t) // BLOCK for t in chat_tokens[1:])
    return {
        "run": run.name,
        "requests": len(run.requests),
        "characters": repeated / sum(map(len, chats[1:])),
        "blocks": blocks / sent_blocks,
        "breaks": sum(b[: len(a) - 2] != a[:-2] for a, b in pairwise(chats)),
        "tokens": sum(map(len, tokens)) / len(tokens),
        "cost": {rule.name: cost(tokens, rule) / run.turns for rule in RULES},
    }


def dumped(messages: list[dict]) -> str:
    """Messages as they go over the wire."""
    return json.dumps(messages, ensure_ascii=False, separators=(",", ":"))


def tokens_of(request: RecordedRequest) -> list[str]:
    """A request as tokens: tools first, as templates put them; pictures at a flat number.

    A token is a Han character, up to four letters or three digits, or a sign: about what
    common vocabularies make of chat.
    """
    tokens = TOKEN.findall(dumped(request.body.get("tools") or []))
    for message in request.messages:
        content = message.get("content")
        parts = content if isinstance(content, list) else []
        pictures = [part for part in parts if part.get("type") == "image_url"]
        if pictures:
            message = message | {"content": [part for part in parts if part not in pictures]}
        for part in pictures:
            tokens += [dumped([part])] * PICTURE_TOKENS
        tokens += TOKEN.findall(dumped([message]))
    return tokens


def common(before: Sequence[str], now: Sequence[str]) -> int:
    """Length of the common start."""
    return next(
        (i for i, (a, b) in enumerate(zip(before, now, strict=False)) if a != b),
        min(len(before), len(now)),
    )


def cost(requests: list[list[str]], rule: Prices) -> float:
    """US dollars for all requests, without their answers, which are the same for all."""
    total = 0.0
    for number, now in enumerate(requests):
        held = requests[max(0, number - HELD_REQUESTS) : number]
        hit = max((common(before, now) for before in held), default=0)
        hit = hit - hit % rule.block if hit >= rule.least else 0
        total += hit * rule.read + (len(now) - hit) * rule.write
    return total / 1e6


# Hosts

LIMIT = 8000
LEAST_PLAIN, LEAST_RICH = 0.95, 0.90


def config(version: str, strategy: str, with_plugin: bool) -> HostConfig:
    """A host whose requests may have ``LIMIT`` tokens, by the plugin's budget or its own."""
    return HostConfig(
        version=version,
        strategy=strategy,
        max_context_tokens=0 if with_plugin else int(LIMIT / HOST_THRESHOLD),
        with_plugin=with_plugin,
        plugin_config={"recent_context_token_budget": LIMIT},
    )


def run_all(version: str, turns: int) -> list[Run]:
    """All four runs, one after the other."""
    plan = (
        ("plugin", "truncate_by_turns", True, False),
        ("plugin, tools and pictures", "truncate_by_turns", True, True),
        ("host alone, truncate_by_turns", "truncate_by_turns", False, False),
        ("host alone, llm_compress", "llm_compress", False, False),
    )
    runs = []
    for name, strategy, with_plugin, rich in plan:
        with ScriptedModel() as model:
            model.add_script(answer)
            with HostProcess(config(version, strategy, with_plugin), model) as host:
                runs.append(talk(host, name, turns, rich))
    return runs


def shown(results: list[dict]) -> str:
    """The results as a table."""
    names = [f"{rule.name} {rule.date}" for rule in RULES]
    head = ["run", "characters", "64-token blocks", "breaks", "tokens/request", *names]
    rows = [
        [
            r["run"],
            f"{r['characters']:.1%}",
            f"{r['blocks']:.1%}",
            str(r["breaks"]),
            f"{r['tokens']:,.0f}",
            *(f"${1000 * each:.2f}" for each in r["cost"].values()),
        ]
        for r in results
    ]
    rule = ["---"] * len(head)
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, rule, *rows])


def main() -> int:
    """Prints the table; 1 if the plugin repeats less than it promises."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--version", default="4.29.3")
    parser.add_argument("--turns", type=int, default=200)
    given = parser.parse_args()
    results = [measure(run) for run in run_all(given.version, given.turns)]
    print(f"{given.turns} turns, limit {LIMIT} tokens, AstrBot {given.version};")
    print("cost in US dollars for the input of 1,000 turns by each price rule\n")
    print(shown(results))
    wanted = zip(results, (LEAST_PLAIN, LEAST_RICH), strict=False)
    return int(any(min(r["characters"], r["blocks"]) < least for r, least in wanted))


if __name__ == "__main__":
    sys.exit(main())
