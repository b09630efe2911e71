"""A long chat in which the model tries to save something every turn."""

import json
import random
import re
from collections import Counter
from collections.abc import Callable

import pytest

from dev.host_process import HostProcess
from dev.script import Reply, text_of

from .sessions import Session, current_of

MARK = "lasting chat"
FROM_RECALL = "from-recall"
ITEMS = (
    "喝黑咖啡",
    "听古典乐",
    "看悬疑小说",
    "吃川菜",
    "养多肉植物",
    "打羽毛球",
    "逛博物馆",
    "做木工",
    "学西班牙语",
    "拍星空照片",
    "收藏邮票",
    "练毛笔字",
    "煮意大利面",
    "玩桌游",
    "徒步登山",
    "弹古筝",
    "写科幻故事",
    "修旧钟表",
    "种番茄",
    "看默片",
)
PEOPLE = ("用户", "用户的妹妹", "用户的室友", "用户的表哥", "用户的同桌")
FACTS = [f"{person}喜欢{item}" for item in ITEMS for person in PEOPLE]
VARIANTS: tuple[Callable[[str], str], ...] = (
    lambda fact: fact,
    lambda fact: f"{fact}。",
    lambda fact: fact.replace("喜欢", "很喜欢"),
    lambda fact: f" {fact}！",
    lambda fact: fact.replace("喜欢", "非常喜欢"),
)
WRAPPINGS = ("{}", "我记得{}", "根据记忆，{}", "之前说过：{}。")


class Saver:
    """A model that saves a fact every turn, or what it has just been reminded of."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.recalled = 0

    def __call__(self, body: dict) -> Reply | None:
        last = body["messages"][-1]
        text = text_of(current_of(body["messages"]))
        if last.get("role") != "user" or MARK not in text:
            return None
        return Reply(tool_calls=[_call(self._arguments(text))])

    def _arguments(self, text: str) -> dict:
        lines = re.findall(r'^#\d+.*: ("(?:[^"\\]|\\.)*")$', text, re.MULTILINE)
        if lines and self._random.random() < 0.5:
            self.recalled += 1
            remembered = json.loads(self._random.choice(lines))
            wrapped = self._random.choice(WRAPPINGS).format(remembered)
            return {"text": wrapped, "tags": [FROM_RECALL]}
        number = int(re.search(r"fact (\d+)", text)[1])
        return {"text": self._random.choice(VARIANTS)(FACTS[number]), "tags": [f"fact-{number}"]}


def _call(arguments: dict) -> dict:
    return {
        "id": f"save_{random.getrandbits(48):x}",
        "type": "function",
        "function": {"name": "memory_save", "arguments": json.dumps(arguments)},
    }


@pytest.mark.parametrize(
    "turns", [30, pytest.param(300, marks=pytest.mark.full)], ids=["30", "300"]
)
def test_a_model_that_saves_every_turn_fills_the_memory_with_no_repeats(
    host: HostProcess, turns: int
) -> None:
    chat = Session(host, memory_enabled=1, recent_context_token_budget=3000)
    saver, chooser = Saver(turns), random.Random(turns + 1)
    remove = host.model.add_script(saver)
    try:
        for turn in range(turns):
            # Facts come back: a chat has favourite subjects.
            number = min(chooser.randrange(100), chooser.randrange(100))
            topic = FACTS[number].partition("喜欢")[2]
            chat.say(f"{MARK} {chat.number}, turn {turn}, fact {number}: 说说{topic}")
    finally:
        remove()
    query = {"session_id": chat.origin, "limit": 200}
    memories = host.web.api("GET", "memories", **query)[1]["items"]
    tags = Counter(tag for memory in memories for tag in memory["tags"])
    texts = Counter(re.sub(r"\W", "", memory["text"]) for memory in memories)
    assert saver.recalled >= turns / 20
    assert len(memories) >= min(turns, 100) / 4
    assert max(texts.values()) == 1
    assert tags[FROM_RECALL] == 0
    near_repeats = sum(count - 1 for count in tags.values())
    assert near_repeats <= len(memories) / 100
