"""How many tokens of each class a text has, from an offline vocabulary.

Vocabularies of different models agree within a class up to a factor, and that
factor can be learned; over all classes together they do not. Ranks come from a
file that the host's own dependencies install. Invariants:

* Nothing is downloaded, and no text makes counting fail.
* Without the rank file a text is counted by its scripts, in the same classes.
"""

import base64
import importlib.util
import re
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from .message_text import clean_text

# The classes of a text's tokens, in the order of every count.
TEXT_CLASSES = ("han", "kana", "latin", "digits", "punctuation", "other")
HAN, KANA, LATIN, DIGITS, PUNCTUATION, OTHER = range(len(TEXT_CLASSES))
ClassCounts = tuple[float, ...]
NO_TOKENS: ClassCounts = (0,) * len(TEXT_CLASSES)

# A single run of a million spaces makes tiktoken raise something that is not an
# Exception; pieces of this size are safe.
_PIECE = 20_000
_QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

_KANA = re.compile("[\u3040-\u30ff\uac00-\ud7af]")
_HAN = re.compile("[\u3000-\u303f\u3400-\u9fff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]")
_DIGIT = re.compile(r"[0-9]")
_LATIN = re.compile(r"[A-Za-z]")
# Class by script and tokens a character, an upper estimate over common
# vocabularies; the first that matches a character counts it.
_BY_SCRIPT = (
    (KANA, _KANA, 0.9),
    (HAN, _HAN, 0.8),
    (OTHER, re.compile("[\U0001f000-\U0001faff\u2600-\u27bf\u200d\ufe0f]"), 2.0),
    (LATIN, _LATIN, 0.25),
    (PUNCTUATION, re.compile(r"\s"), 0.15),
    (DIGITS, _DIGIT, 0.6),
    (PUNCTUATION, re.compile(r"[\x21-\x7e]"), 0.6),
    (OTHER, re.compile(r".", re.DOTALL), 0.8),
)

CountClasses = Callable[[str], ClassCounts]


def classes_by_script(text: str) -> ClassCounts:
    """Estimates tokens by class from the scripts of the characters alone."""
    totals = [0.0] * len(TEXT_CLASSES)
    for index, pattern, weight in _BY_SCRIPT:
        text, found = pattern.subn("", text)
        totals[index] += found * weight
    return tuple(totals)


def load_vocabulary() -> CountClasses:
    """Loads the rank file; takes half a second and belongs into a thread.

    Raises:
        ImportError: tiktoken is not installed.
        OSError: There is no rank file.
        ValueError: The rank file is damaged.
    """
    import tiktoken

    path = _rank_file()
    if path is None:
        raise FileNotFoundError("dashscope/resources/qwen.tiktoken is not installed")
    ranks = {}
    for line in path.read_bytes().splitlines():
        token, rank = line.split()
        ranks[base64.b64decode(token)] = int(rank)
    # Built from the file itself: get_encoding would go to the network.
    encoding = tiktoken.Encoding(
        "context_manager", pat_str=_QWEN_PATTERN, mergeable_ranks=ranks, special_tokens={}
    )
    class_of = bytearray(max(ranks.values()) + 1)
    for token, rank in ranks.items():
        class_of[rank] = _class_of(token)
    return partial(_classes, encoding, bytes(class_of))


def _rank_file() -> Path | None:
    spec = importlib.util.find_spec("dashscope")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / "resources" / "qwen.tiktoken"
        if path.is_file():
            return path
    return None


def _class_of(token: bytes) -> int:
    try:
        text = token.decode()
    except UnicodeDecodeError:
        # Part of a rare character: vocabularies differ most on these.
        return OTHER
    for index, pattern in ((KANA, _KANA), (HAN, _HAN), (DIGITS, _DIGIT), (LATIN, _LATIN)):
        if pattern.search(text):
            return index
    return PUNCTUATION if text.isascii() else OTHER


def _classes(encoding: Any, class_of: bytes, text: str) -> ClassCounts:
    text = clean_text(text)
    found: Counter[int] = Counter()
    for start in range(0, len(text), _PIECE):
        tokens = encoding.encode_ordinary(text[start : start + _PIECE])
        found.update(map(class_of.__getitem__, tokens))
    return tuple(found[index] for index in range(len(TEXT_CLASSES)))
