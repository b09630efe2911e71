"""A provider with a vocabulary of its own, linear in the classes but for some noise."""

import zlib
from random import Random

from astrbot_plugin_context_manager.calibration import PROMPT, add
from astrbot_plugin_context_manager.vocabulary import classes_by_script

from .messages import Msg, assistant, user

# Tokens a token of each class, in the order of ``TEXT_CLASSES``.
CHINESE_EXPENSIVE = (1.85, 1.7, 0.97, 0.4, 1.05, 1.6)
CHINESE_CHEAP = (0.8, 0.6, 1.02, 0.95, 1.1, 1.2)
ZH = "今天我们讨论一下项目的进度安排和接下来需要完成的事情，你觉得怎么样？好的没有问题。"
EN = "Please review the quarterly report and tell me what you think about the numbers. "


class Provider:
    """Counts prompts; each text is off by up to two per cent in its own way."""

    def __init__(self, weights=CHINESE_EXPENSIVE, message=3, prompt=40, tools=1.4):
        self.weights, self.message, self.prompt, self.tools = weights, message, prompt, tools

    def count_text(self, text):
        classes = classes_by_script(text)
        exact = sum(w * c for w, c in zip(self.weights, classes, strict=True))
        return exact * (0.98 + zlib.crc32(text.encode()) % 1000 / 25_000)

    def count(self, messages, tool_tokens=0):
        texts = sum(self.count_text(m.content) + self.message for m in messages)
        return round(texts + self.prompt + tool_tokens * self.tools)


def counts_of_prompt(tokens, messages, tool_tokens=0):
    """What a whole prompt is counted by."""
    tools = (*(0,) * 7, tool_tokens, 0, 0, 0)
    return add(add(tokens.counts_of_all(messages), tools), PROMPT)


def talk(seed, turns=30, chinese=None):
    """Question and answer of so many turns, in a language mix of their own."""
    random = Random(seed)
    share = random.random() if chinese is None else chinese
    return [
        (user(_text(random, share, 6)), assistant(_text(random, share, 24))) for _ in range(turns)
    ]


def _text(random, share, most):
    pieces = []
    for _ in range(random.randint(1, most)):
        source = ZH if random.random() < share else EN
        start = random.randrange(len(source) - 8)
        pieces.append(source[start : start + random.randint(8, 60)])
        pieces.append(random.choice(("", "123", "😀")))
    return "".join(pieces)


def system(text="You are a helpful assistant. " * 10):
    return Msg("system", text)
