"""Sentences to fill an archive with: Chinese with some English, Japanese and Korean.

Generated from a seed, so that every run sees the same ones. Words are drawn so that few
are common and most are rare, as in real text.
"""

import random
from collections.abc import Iterator
from itertools import accumulate

_HAN_CHARACTERS, _WORDS, _LATIN_WORDS = 3000, 20_000, 4000
_SYLLABLES = "ba ce di fo gu ha ji ko li mo nu pe ra so ti vu wa xe yo zi".split()  # noqa: SIM905
_KANA = "あいうえおかきくけこさしすせそたちつてとなにぬねのまみむめもらりるれろ"
_HANGUL = "가나다라마바사아자차카타파하고노도로모보소오조초코토포호"
_MARKS = "，。！？、：；"


def _falling(count: int, flatness: int) -> list[float]:
    return list(accumulate(1 / (rank + flatness) for rank in range(count)))


class Sentences:
    """An endless supply of sentences."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        draw = self._random
        han = [chr(code) for code in draw.sample(range(0x4E00, 0x9FA5), _HAN_CHARACTERS)]
        weights = _falling(_HAN_CHARACTERS, 20)
        lengths = draw.choices([1, 2, 3, 4], [20, 60, 15, 5], k=_WORDS)
        self._words = ["".join(draw.choices(han, cum_weights=weights, k=n)) for n in lengths]
        self._word_weights = _falling(_WORDS, 10)
        self._latin = [
            "".join(draw.choices(_SYLLABLES, k=draw.randint(1, 4))) for _ in range(_LATIN_WORDS)
        ]
        self._latin_weights = _falling(_LATIN_WORDS, 10)

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        """A sentence of 5 to 60 characters."""
        draw = self._random
        kind = draw.random()
        if kind < 0.75:
            return self._chinese()
        if kind < 0.9:
            words = draw.choices(self._latin, cum_weights=self._latin_weights, k=draw.randint(3, 9))
            return " ".join(words).capitalize() + "."
        letters = _KANA if kind < 0.95 else _HANGUL
        return "".join(draw.choices(letters, k=draw.randint(5, 25))) + "。"

    def _chinese(self) -> str:
        draw = self._random
        words = draw.choices(self._words, cum_weights=self._word_weights, k=draw.randint(3, 20))
        if draw.random() < 0.2:
            words.insert(draw.randrange(len(words)), str(draw.randrange(10_000)))
        if draw.random() < 0.2:
            [latin] = draw.choices(self._latin, cum_weights=self._latin_weights)
            words.insert(draw.randrange(len(words)), latin)
        words.insert(draw.randrange(1, len(words) + 1), draw.choice(_MARKS))
        return "".join(words)
