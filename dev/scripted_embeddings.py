"""Embeddings of the scripted model: small, deterministic, and able to misbehave.

A text's vector is the sum of the directions of its words and of the concepts they
belong to. Words of one concept share no characters, so that a search by meaning can
be told from a search by words.

Invariants:
- The same text, size and concepts always give the same vector of length 1.
- ``mode`` and ``size`` may be changed from any thread while the server runs.
"""

import asyncio
import hashlib
import random
import re
from dataclasses import dataclass, field
from functools import lru_cache

SIZE = 256
HANG_SECONDS = 60.0
_WORD = re.compile(r"[a-z0-9]+(?:-[a-z]+)?|[\u3400-\u9fff]")
_CONCEPT_WEIGHT, _WORD_WEIGHT = 3.0, 1.0
# Each line is one concept. Nothing but these words is understood.
_CONCEPTS = """
素食 vegetarian 牛排 steak 吃肉 meat
宠物 狗狗 passed puppy adopting 领养
左撇子 惯用手 left-handed grip 剪刀 scissors
找工作 简历 求职 hunting resume employer 产品经理
透析 肾病 dialysis kidney
近视 眼镜 镜片 视力 short-sighted lenses glasses
头疼 偏头痛 headaches migraine
买房 首付 楼盘 house mortgage
老板 上司 boss manager
怕冷 温度 太热
花生 坚果 peanuts nuts
"""


@dataclass
class ScriptedEmbeddings:
    """What ``/v1/embeddings`` answers.

    Attributes:
        mode: ``ok``, ``error`` (HTTP 500), ``hang``, ``empty`` (no vectors) or
            ``nan`` (numbers that are none).
        size: Length of the vectors.
        calls: The texts of every call so far.
    """

    mode: str = "ok"
    size: int = SIZE
    calls: list[list[str]] = field(default_factory=list)

    async def answer(self, body: dict) -> tuple[int, dict]:
        """Status and JSON of one call."""
        texts = body["input"] if isinstance(body["input"], list) else [body["input"]]
        self.calls.append([str(text) for text in texts])
        if self.mode == "hang":
            await asyncio.sleep(HANG_SECONDS)
        if self.mode in ("error", "hang"):
            return 500, {"error": {"message": "scripted embedding error", "type": "scripted"}}
        size = int(body.get("dimensions") or self.size)
        data = [
            {"object": "embedding", "index": i, "embedding": self._vector(str(text), size)}
            for i, text in enumerate([] if self.mode == "empty" else texts)
        ]
        usage = {"prompt_tokens": len(texts), "total_tokens": len(texts)}
        return 200, {"object": "list", "data": data, "model": "scripted", "usage": usage}

    def _vector(self, text: str, size: int) -> list[float]:
        return [float("nan")] * size if self.mode == "nan" else embedded(text, size)


def embedded(text: str, size: int = SIZE) -> list[float]:
    """The vector of a text."""
    text = text.lower()
    total = [0.0] * size
    for word in _WORD.findall(text):
        _add(total, _direction(word, size), _WORD_WEIGHT)
    for number, words in enumerate(_concepts()):
        if any(word in text for word in words):
            _add(total, _direction(f"concept {number}", size), _CONCEPT_WEIGHT)
    length = sum(value * value for value in total) ** 0.5 or 1.0
    return [value / length for value in total]


def _add(total: list[float], direction: tuple[float, ...], weight: float) -> None:
    for index, value in enumerate(direction):
        total[index] += weight * value


@lru_cache
def _concepts() -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(line.split()) for line in _CONCEPTS.strip().splitlines())


@lru_cache(maxsize=100_000)
def _direction(word: str, size: int) -> tuple[float, ...]:
    source = random.Random(hashlib.sha256(word.encode("utf-8", "replace")).digest())
    values = [source.gauss(0, 1) for _ in range(size)]
    length = sum(value * value for value in values) ** 0.5
    return tuple(value / length for value in values)
