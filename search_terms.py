"""The terms under which a text is indexed, and those a question is looked up by.

Pure. Chinese, Japanese and Korean have no spaces to cut at: every character is a
term and so is every overlapping pair, which finds any piece of a text without a
dictionary. Other scripts are cut into words, lower-cased, without accents and
stemmed. Invariants:

* A term has no space, no ASCII punctuation and no upper case: one token for FTS5's
  ``ascii`` tokenizer, whatever SQLite knows of Unicode.
* The index and the questions use the same functions; ``TERMS_VERSION`` grows with
  every change that gives a text other terms, and an index of another version is
  built anew.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator
from functools import lru_cache

import snowballstemmer

TERMS_VERSION = 1

# Longer texts are pasted logs or files: their beginning is enough to find them.
INDEXED_CHARACTERS = 20_000
# A question longer than this is no question any more.
QUERY_CHARACTERS = 2_000
_WORD_LENGTH = 40

# Han, kana and hangul, without the punctuation in between.
_CJK = (
    "\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff"
    "\u3105-\u312f\u3131-\u318e\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff"
    "\U00020000-\U0003ffff"
)
# Signs that are looked for by themselves.
_SIGNS = "\u2190-\u2bff\U0001f000-\U0001faff"
_ONLY_CJK = re.compile(f"[{_CJK}]+")
_RUNS = re.compile(f"(?P<cjk>[{_CJK}]+)|(?P<word>[^\\W_{_CJK}{_SIGNS}]+)|(?P<sign>[{_SIGNS}])")

# Characters and words that stand in nearly every question and tell nothing apart.
_STOP_CHARACTERS = frozenset(
    "的了是我你您他她它们在有和与就不也都这那吗呢吧啊呀哦嗯么什怎哪谁几个一之其被把给对从到于"
    "为以及或而但很会能要可过着得地没还又再上下里中去来说想请问是曾跟和"
    "のはがをにでとものへやかねよなしたてますですれるいうこそあ"
)
_STOP_WORD_LIST = """
a about above after again all also am an and any are as at be because been before being but by
can could d did do does doing don for from further get got had has have having he her here hers
him his how i if in into is isn it its itself just ll m me more most my no nor not now o of off
on once only or other our ours out over own re s same she should so some such t than that the
their theirs them then there these they this those through to too under until up us ve very was
wasn we were what when where which while who whom whose why will with would you your yours
"""
_STOP_WORDS = frozenset(_STOP_WORD_LIST.split())

_stemmer = snowballstemmer.stemmer("english")


def normalised(text: str) -> str:
    """A text as it is compared: compatible characters unified, lower case."""
    return unicodedata.normalize("NFKC", text).lower()


def is_cjk(text: str) -> bool:
    """Whether a text, in unified form, is nothing but Chinese, Japanese or Korean."""
    return _ONLY_CJK.fullmatch(text) is not None


def index_terms(text: str) -> list[str]:
    """The terms of a text in reading order, with repetitions."""
    return list(_terms(normalised(text[:INDEXED_CHARACTERS])))


def query_terms(text: str) -> list[str]:
    """The terms a question is looked up by, each once, in reading order.

    Words and characters that stand everywhere are left out, unless the question
    has nothing else.
    """
    text = normalised(text[:QUERY_CHARACTERS])
    terms = list(dict.fromkeys(_terms(text)))
    telling = set(_terms(text, without_stops=True))
    return [term for term in terms if term in telling] or terms


def spans_of_terms(text: str, terms: set[str]) -> Iterator[tuple[int, int]]:
    """Where terms stand in a text, as ``(start, end)`` in reading order; may overlap.

    Characters whose unified form has another length stay as they are.
    """
    plain = normalised(text)
    if len(plain) != len(text):
        plain = "".join(one if len(one := normalised(c)) == 1 else c for c in text)
    for found in _RUNS.finditer(plain):
        if found.lastgroup != "cjk":
            if _stem(found.group()[:_WORD_LENGTH]) in terms or found.group() in terms:
                yield found.span()
            continue
        for index in range(*found.span()):
            for end in (index + 1, index + 2):
                if end <= found.end() and plain[index:end] in terms:
                    yield index, end


def match_expression(terms: Iterable[str], operator: str = "OR") -> str:
    """An FTS5 expression of quoted terms; nothing in it is read as an operator."""
    return f" {operator} ".join('"' + term.replace('"', '""') + '"' for term in terms)


def _terms(text: str, without_stops: bool = False) -> Iterator[str]:
    for found in _RUNS.finditer(text):
        run = found.group()
        if found.lastgroup == "cjk":
            yield from _pieces(run, _STOP_CHARACTERS if without_stops else frozenset())
        elif found.lastgroup == "sign":
            yield run
        elif not (without_stops and run in _STOP_WORDS):
            yield _stem(run[:_WORD_LENGTH])


def _pieces(run: str, stops: frozenset[str]) -> Iterator[str]:
    for index, character in enumerate(run):
        if character not in stops:
            yield character
        pair = run[index : index + 2]
        if len(pair) == 2 and not stops.issuperset(pair):
            yield pair


@lru_cache(maxsize=20_000)
def _stem(word: str) -> str:
    if not word.isascii():
        plain = unicodedata.normalize("NFD", word)
        word = "".join(c for c in plain if unicodedata.category(c) != "Mn") or word
    return _stemmer.stemWord(word) if word.isascii() else word
