"""What may become a long-term memory: the rules at the door.

Pure: no I/O, no clock, nothing of the host. Invariants:

* A stored text is clean: no lone surrogates, no control characters, at most
  ``MAX_CHARACTERS``.
* Two memories of a session never say the same of one person; a text that differs in a
  number or in a negation is another fact, however similar it looks.
* A memory is data. What reads like an instruction to the model is kept, but flagged.
* What was made from memories that the model has just been shown is no new memory, unless
  it tells somebody else's fact.
"""

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from rapidfuzz import fuzz

from .errors import MemoryRefused
from .message_text import clean_text
from .search_terms import query_terms

MAX_CHARACTERS = 2000
MAX_TAGS = 8
TAG_LENGTH = 32
ABOUT_LENGTH = 64

# Similarity of two texts from which on they say the same. Texts that differ in light
# words alone may be further apart, short ones in which a character stands for another
# one say something else.
NEAR = 0.92
NEAR_WITH_FILLER = 0.85
NEAR_WITH_OTHER_CHARACTER = 0.98
# The same for the cosine of their embeddings.
NEAR_COSINE = 0.92
# A text of which another one makes up this share adds too little to it.
MOSTLY = 0.6
# What is shown to a model and comes back from it may be quoted and reworded a little.
MOSTLY_SHOWN = 0.5
NOVEL_TERMS = 0.2
# Of a text that has this share of a shown memory's words, more may be the wrapping.
RETOLD, NOVEL_TERMS_RETOLD = 0.85, 0.5
# Below this many characters a text is contained in others by accident.
_SHORT = 4
# Stands between the text and the person of a key; neither holds it.
_PERSON = "\x1f"

# What nobody sees can hide a text from whoever reviews it; flags are made of tags.
_CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u180e\u200b\u202a-\u202e\u2060-\u206f\ufeff"
    r"\U000e0100-\U000e01ef]|(?<![\U0001f3f4\U000e0020-\U000e007f])[\U000e0000-\U000e007f]+"
)
_INVISIBLE = re.compile("[\u200c-\u200f\ufe00-\ufe0f]")
_NOISE = re.compile(r"[^\w\u2190-\u2bff\U0001f000-\U0001faff+#%&*@$€£¥=<>.,:/~-]+|[.,:/~-](?!\d)|_")
_NUMBER = re.compile(
    r"(?:(?<!\w)-)?\d+(?:[.,:/-]\d+)*|[+#%$€£¥°]+|[二三四五六七八九十百千万亿两〇零]+"
)
_NEGATION = re.compile(
    r"不(?!仅|但|过|错|同|久|断|管|止)|没|無|无(?!论|聊)|(?<!除)非(?!常|洲)|未(?!来|婚)|勿|莫|禁"
    r"|(?<![特区分差级性识类个])别(?!人|的|墅|名|处)"
    r"|\b(?:not|no|never|without|cannot|nor|none|stop(?:ped|s)?)\b|n['’]t\b"
)
# Words that say how much or that one is speaking, not what.
_FILLER = re.compile(
    r"非常|特别|十分|超级|真的|其实|很|挺|也|都|了|啊|呀|哦|呢|吧"
    r"|\b(?:the|a|an|really|very|quite|so|that|also|just)\b"
)
# Scripts that write without blanks: Han, kana, hangul.
_UNSPACED = "\u2e80-\u9fff\uac00-\ud7af"
_WORD = re.compile(rf"[^\W\d_{_UNSPACED}]+")
_HAN = re.compile("[\u4e00-\u9fff]")
_CLAUSE = re.compile(r"[\n,;:，。；：、]|\.\s")
_UNIT = re.compile(rf"{_WORD.pattern}|[{_UNSPACED}\u2190-\u2bff\U0001f000-\U0001faff]")
# What connects words, and may come and go with the wording.
_LIGHT = frozenset("在的地得是有个过着到来就还又再已曾于被把给对这那该此") | frozenset(
    ("is", "are", "was", "be", "has", "have", "of", "in", "on", "at", "to", "for", "this", "it")
)

_INSTRUCTION = re.compile(
    r"""
    ^\s*(?:={3}.*={3}|-{3}.*-{3})\s*$                       # section markers
    | <\s*/?\s*\|?\s*(?:system\w*|assistant|user|im_start|im_end|inst|sys|tool\w*|developer|s
        |memories|summary\w*|messages)\b[^>]*>
    | \#{1,6}\s*(?:system|instructions?)\s*\# | \bsystem\s+override\b
    | <\|[^|>]{1,40}\|> | \[/?(?:INST|SYS|SYSTEM)\] | <<\s*/?SYS\s*>>
    | ^\s*\#{0,4}\s*(?:system|assistant|developer|human|系统|助手)\s*[:：]
    | \b(?:ignore|disregard|forget|override|bypass)\b.{0,40}\b(?:previous|above|prior|earlier
        |preceding|instructions?|rules?|prompts?|guidelines?|everything)\b
    | \b(?:system|developer)\s+(?:prompt|message|instructions?)\b
    | \b(?:you\s+are\s+now|from\s+now\s+on|pretend\s+(?:to\s+be|you)|act\s+as\s+(?:if|an?\b)
        |you\s+must|you\s+(?:will|shall|should)\s+(?:now|always|never)|do\s+not\s+tell\s+the\s+user
        |(?:do\s+not|don't|never)\s+(?:reveal|mention|disclose)|what\s+you\s+were\s+told
        |(?:respond|reply|answer)\s+(?:only|always|every\s+\w+)\s+with
        |(?:respond|reply|answer)\s+only|always\s+(?:say|answer|reply|respond|call|obey)
        |reveal\s+your|new\s+instructions?|jailbreak|(?:act\s+as|are)\s+dan|dan\s+mode)\b
    | (?:忽略|无视|無視|忘记|忘掉|不要理会|不要遵守|覆盖|绕过).{0,12}
        (?:之前|以前|以上|上面|上述|前面|先前|此前|所有|全部|一切|指令|指示|规则|提示|设定|要求|限制)
    | (?:听从|服从|执行).{0,12}(?:一切|任何|所有).{0,4}(?:命令|指令|要求)
    | (?:没有|不受).{0,4}限制的?(?:AI|模型|助手)
    | 无论.{0,12}都(?:要|必须|只能)?(?:回答|回复|说)|每次(?:回答|回复)都?(?:要|必须|加)|指示を無視
    | 系统提示|提示词|开发者模式|越狱|新的?指令
    | 从现在(?:起|开始)
    | 你(?:现在|将|必须|只能|要)(?:是|扮演|假装|变成|永远|一直|听从|服从|回答|回复)
    | 假装你|扮演(?:一个|成)|不要告诉(?:用户|任何人)|你的(?:新)?(?:身份|角色|任务)是
    """,
    re.IGNORECASE | re.MULTILINE | re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class Entry:
    """A memory that is well-formed, before it is compared with others.

    Attributes:
        text: What is remembered.
        key: The text, and the person if there is one, as repeats are found by; never empty.
        tags: Words it can be found by, without repetitions.
        about: Whom it is about; empty if that needs no telling.
        flagged: Whether it reads like an instruction to a model.
    """

    text: str
    key: str
    tags: tuple[str, ...]
    about: str
    flagged: bool


@dataclass(frozen=True, slots=True)
class Known:
    """A text that is remembered already: a memory's id, its text and whom it is about."""

    id: int
    text: str
    about: str = ""


def entry_of(text: Any, tags: Any = (), about: Any = "") -> Entry:
    """A well-formed memory.

    Args:
        text: Whatever was given; anything but a text is refused.
        tags: A list of texts, or one text with separators.
        about: A name.

    Raises:
        MemoryRefused: ``memory_empty`` or ``memory_too_long``.
    """
    clean = normalised(text) if isinstance(text, str) else ""
    if not any(unicodedata.category(character)[0] in "LNS" for character in clean):
        raise MemoryRefused("memory_empty")
    if len(clean) > MAX_CHARACTERS:
        raise MemoryRefused("memory_too_long", length=len(clean), limit=MAX_CHARACTERS)
    name = _line(about, ABOUT_LENGTH)
    key = f"{key_of(clean)}{_PERSON}{key_of(name)}" if name else key_of(clean)
    return Entry(clean, key, tags_of(tags), name, _flagged(clean))


def normalised(text: str) -> str:
    """A text without what nobody sees: surrogates, controls, spare blanks."""
    text = unicodedata.normalize("NFC", clean_text(text)).replace("\r\n", "\n").replace("\r", "\n")
    text = re.sub(r"[^\S\n]+", " ", _CONTROL.sub("", text))
    return re.sub(r" ?\n ?", "\n", re.sub(r"\n\s*\n\s*", "\n\n", text)).strip()


def tags_of(tags: Any) -> tuple[str, ...]:
    """The usable tags among what was given, in their order."""
    if isinstance(tags, str):
        tags = re.split(r"[,，、;；\n]", tags)
    if not isinstance(tags, list | tuple):
        return ()
    found: dict[str, str] = {}
    for tag in tags:
        line = _line(tag, TAG_LENGTH).lstrip("#＃ ")
        if line:
            found.setdefault(line.casefold(), line)
    return tuple(found.values())[:MAX_TAGS]


def _line(text: Any, length: int) -> str:
    if not isinstance(text, str):
        return ""
    return re.sub(r"\s+", " ", normalised(text))[:length].strip()


def _flagged(text: str) -> bool:
    plain = unicodedata.normalize("NFKC", _INVISIBLE.sub("", text))
    return _INSTRUCTION.search(plain) is not None


@lru_cache(maxsize=4096)
def key_of(text: str) -> str:
    """A text without case, blanks and the punctuation that changes nothing."""
    plain = unicodedata.normalize("NFKC", text).casefold()
    return _NOISE.sub("", plain) or plain


@lru_cache(maxsize=4096)
def _core(text: str) -> str:
    """The key of a text without its filler words."""
    plain = _FILLER.sub("", unicodedata.normalize("NFKC", text).casefold())
    return _NOISE.sub("", plain)


@lru_cache(maxsize=4096)
def _facts(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The numbers and the negations of a text, sorted."""
    plain = _FILLER.sub("", unicodedata.normalize("NFKC", text).casefold())
    numbers = sorted(_NUMBER.findall(plain))
    return tuple(numbers), tuple(sorted(_NEGATION.findall(plain)))


def same_facts(a: str, b: str) -> bool:
    """Whether two texts have the same numbers and negations."""
    return _facts(a) == _facts(b)


def says_the_same(new: str, old: str) -> bool:
    """Whether a text adds nothing worth keeping beside another one."""
    a, b = key_of(new), key_of(old)
    if a == b:
        return True
    if _contains(old, new):
        return True
    if not same_facts(new, old):
        return False
    if _contains(new, old) and len(b) >= MOSTLY * len(a):
        return True
    if _core(new) and _core(new) == _core(old):
        return True
    ratio = fuzz.ratio(a, b) / 100
    if ratio >= NEAR_WITH_FILLER and _content(new) == _content(old):
        return True
    return ratio >= NEAR and not _other_word(new, old) and not _other_character(new, old, ratio)


def _contains(whole: str, part: str) -> bool:
    a, b = key_of(whole), key_of(part)
    if len(b) < _SHORT or b not in a or not same_facts(part, _around(whole, part)):
        return False
    # Keys have no blanks: "likes tea" is in "likes team sports".
    return set(_words(part)) <= set(_words(whole))


def _around(whole: str, part: str) -> str:
    # A negation just before the part belongs to it: "does not | like tea".
    a, b = key_of(whole), key_of(part)
    at = a.find(b)
    return a[max(0, at - 4) : at + len(b)] if len(b) < len(a) else a


def _other_word(new: str, old: str) -> bool:
    """Whether a word stands for another one that is no mere variant of it."""
    a, b = set(_words(new)), set(_words(old))
    return any(all(fuzz.ratio(word, other) < 80 for other in b - a) for word in a - b if b - a)


def _other_character(new: str, old: str, ratio: float) -> bool:
    """Whether a Han character stands for another one: a name, a relative, a place."""
    a, b = (set(_HAN.findall(_core(text))) - _LIGHT for text in (new, old))
    return bool(a - b and b - a) and ratio < NEAR_WITH_OTHER_CHARACTER


def _content(text: str) -> list[str]:
    """What a text is about, whatever its wording: characters and words but light ones."""
    plain = _FILLER.sub("", unicodedata.normalize("NFKC", text).casefold())
    return sorted(one for one in _UNIT.findall(plain) if one not in _LIGHT)


def _words(text: str) -> list[str]:
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


def of_one_person(new: Entry, old: Known) -> bool:
    """Whether two texts may be about the same person.

    Those without a person may be about anyone, and one with a clause that begins with
    the other's person is about that one, whoever it was saved for.
    """
    if not new.about or not old.about or key_of(new.about) == key_of(old.about):
        return True
    return _tells_of(new.text, old.about) or _tells_of(old.text, new.about)


def _tells_of(text: str, person: str) -> bool:
    name = key_of(person)
    clauses = _CLAUSE.split(text)
    return any(key_of(one).startswith(name) and _names(one, person) for one in clauses)


def _names(text: str, person: str) -> bool:
    # Keys have no blanks: "Al" is no part of "always".
    return key_of(person) in key_of(text) and set(_words(person)) <= set(_words(text))


def repeated(entry: Entry, known: Iterable[Known]) -> Known | None:
    """The memory that says the same of the same person; the first if there are several."""
    found = (one for one in known if says_the_same(entry.text, one.text))
    return next((one for one in found if of_one_person(entry, one)), None)


def in_fixed_memory(entry: Entry, fixed_memory: str) -> bool:
    """Whether the fixed memory says it already, in one of its lines or across them.

    For a memory about a person only those lines count that name the person or begin with
    the whole text: what stands behind another beginning is told of somebody else.
    """
    text, key = entry.text, key_of(entry.text)
    if entry.about:
        lines = fixed_memory.splitlines()
        lines = [x for x in lines if _names(x, entry.about) or key_of(x).startswith(key)]
        fixed_memory = "\n".join(lines)
    if not fixed_memory.strip():
        return False
    if len(key) >= _SHORT and key in key_of(fixed_memory) and _contains(fixed_memory, text):
        return True
    return any(line.strip() and says_the_same(text, line) for line in fixed_memory.splitlines())


def made_from(entry: Entry, shown: Iterable[Known]) -> Known | None:
    """The memory, among those just shown to the model, that a new one repeats.

    A text that quotes them, or says hardly anything but their words, came from them, but
    for those about another person.
    """
    shown = [one for one in shown if of_one_person(entry, one)]
    if not shown:
        return None
    text, key = entry.text, key_of(entry.text)
    quoted = [one for one in shown if len(key_of(one.text)) >= _SHORT and key_of(one.text) in key]
    if sum(len(key_of(one.text)) for one in quoted) >= MOSTLY_SHOWN * len(key):
        return quoted[0]
    terms = set(query_terms(text))
    best = max(shown, key=lambda one: len(terms & set(query_terms(one.text))))
    known = {term for one in shown for term in query_terms(one.text)}
    numbers, negations = _facts(text)
    shown_facts = [_facts(one.text) for one in shown]
    if set(numbers) - {n for facts in shown_facts for n in facts[0]}:
        return None
    if all(negations != facts[1] for facts in (shown_facts if negations else [_facts(best.text)])):
        return None
    best_terms = set(query_terms(best.text))
    retold = len(best_terms & terms) >= RETOLD * len(best_terms)
    allowed = NOVEL_TERMS_RETOLD if retold else NOVEL_TERMS
    return best if len(terms - known) < allowed * len(terms) else None
