"""Which memories a question calls up, and in which order.

Pure: the same input always gives the same memories in the same order. Invariants:

* Order is by score, highest first; equal scores by id, the older memory first.
* A memory is sent whole or not at all. One that does not fit is passed over, and the
  next one is tried.
* What the model can already read in the request is not sent a second time.
"""

import json
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from math import ceil
from pathlib import Path

from jinja2 import Environment, StrictUndefined

from .memory_store import Memory
from .search_ranking import Passage, Statistics, TermCounts, scores
from .search_terms import index_terms, query_terms

# Cosine from which on a memory has to do with a question.
LEAST_COSINE = 0.3
# Share of the joined score that comes from embeddings.
COSINE_WEIGHT = 0.35
# The keyword rank's own threshold: a question calls up a memory by a word that few
# memories have, or by this share of its single characters.
_RARE_SHARE, _RARE_LEAST = 0.1, 2
_LEAST_CHARACTERS = 0.34
# A tag stands for what the whole memory is about.
_TAG_COUNTS = 2
# A passage that has this share of a memory's words says it.
_VISIBLE_SHARE = 0.8
# How far apart the words may stand, in characters, where the memory is not longer itself.
_PASSAGE = 200
_CACHED_CHARACTERS = 400

_TEMPLATE = Environment(
    undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, autoescape=False
).from_string((Path(__file__).parent / "prompts" / "recalled.j2").read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True)
class Scored:
    """A memory with how well it fits a question; the higher, the better."""

    memory: Memory
    score: float


def keyword_scores(question: str, memories: Sequence[Memory]) -> dict[int, float]:
    """Scores of the memories that share enough words with a question, by id."""
    terms = query_terms(question)
    texts = [_counts(memory) for memory in memories]
    passages = [
        Passage(text, sender=memory.about) for text, memory in zip(texts, memories, strict=True)
    ]
    statistics = _statistics(terms, texts)
    rare = _rare(terms, statistics)
    return {
        memory.id: score
        for memory, text, score in zip(
            memories, texts, scores(question, terms, passages, statistics), strict=True
        )
        if score > 0 and _calls_up(terms, rare, text)
    }


def _statistics(terms: Sequence[str], texts: Sequence[TermCounts]) -> Statistics:
    """What the ranking needs to know: of no term but those of the question."""
    frequencies = {term: sum(term in text.counts for text in texts) for term in terms}
    average = sum(text.length for text in texts) / len(texts) if texts else 1.0
    return Statistics(len(texts), frequencies, average)


def _rare(terms: Sequence[str], statistics: Statistics) -> Set[str]:
    limit = max(_RARE_LEAST, _RARE_SHARE * statistics.total)
    return {term for term in terms if statistics.frequencies[term] <= limit}


def _calls_up(terms: Sequence[str], rare: Set[str], text: TermCounts) -> bool:
    if any(_is_word(term) and term in rare and term in text.counts for term in terms):
        return True
    characters = [term for term in terms if not _is_word(term)]
    found = sum(term in rare and term in text.counts for term in characters)
    # One shared character says something only where nothing else is asked.
    enough = 2 if len(characters) < len(terms) else 1
    return found >= max(enough, _LEAST_CHARACTERS * len(characters))


def _counts(memory: Memory) -> TermCounts:
    # Long memories are few, and their terms take too much room to be held.
    short = len(memory.text) <= _CACHED_CHARACTERS
    count = _cached_counts if short else _counted
    return count(memory.text, memory.tags, memory.about)


def _counted(text: str, tags: tuple[str, ...], about: str) -> TermCounts:
    own = TermCounts.of(f"{text}\n{' '.join(tags)}", about)
    counts = dict(own.counts)
    for term in TermCounts.of(" ".join(tags)).counts:
        counts[term] = counts.get(term, 0) + _TAG_COUNTS
    return TermCounts(counts, own.length)


_cached_counts = lru_cache(maxsize=2048)(_counted)


def _is_word(term: str) -> bool:
    """Whether a term is a word or a pair; a single Han character is in many words."""
    return len(term) > 1 or term.isascii()


def ranked(
    memories: Sequence[Memory],
    keywords: Mapping[int, float],
    cosines: Mapping[int, float] | None = None,
) -> list[Scored]:
    """The memories that fit a question, best first.

    Args:
        memories: Those of the session.
        keywords: Their keyword scores by id; absent means none.
        cosines: Their cosines with the question by id; None or empty without embeddings.
    """
    near = {i: value for i, value in (cosines or {}).items() if value >= LEAST_COSINE}
    found = [memory for memory in memories if memory.id in keywords or memory.id in near]
    best_keyword = max(keywords.values(), default=0.0)
    best_cosine = max(near.values(), default=0.0)
    weight = COSINE_WEIGHT if cosines else 0.0

    def score(memory: Memory) -> float:
        by_words = keywords.get(memory.id, 0.0) / best_keyword if best_keyword else 0.0
        by_meaning = near.get(memory.id, 0.0) / best_cosine if best_cosine else 0.0
        return (1 - weight) * by_words + weight * by_meaning

    result = [Scored(memory, score(memory)) for memory in found]
    return sorted(result, key=lambda one: (-one.score, one.memory.id))


def searched(question: str, memories: Sequence[Memory]) -> list[Memory]:
    """The memories that a person's search finds, best first, ties newest first.

    Whatever holds the searched text as it stands is found, and so is what shares words
    with it.
    """
    keywords = keyword_scores(question, memories)
    wanted = question.strip().casefold()

    def literal(memory: Memory) -> bool:
        return any(wanted in t.casefold() for t in (memory.text, memory.about, *memory.tags))

    found = [(literal(m), keywords.get(m.id, 0.0), m) for m in memories]
    hits = [one for one in found if one[0] or one[1]]
    return [m for *_, m in sorted(hits, key=lambda h: (-h[0], -h[1], -h[2].id))]


def unseen(candidates: Iterable[Scored], visible: Sequence[str], enough: int) -> list[Scored]:
    """The first candidates that none of the visible texts tells.

    Args:
        candidates: In their order.
        visible: The texts of a request.
        enough: How many are wanted at most; the texts may be long.
    """
    lowered = [text.casefold() for text in visible]
    fresh = (one for one in candidates if not _is_told(one.memory.text, lowered))
    return list(islice(fresh, enough))


def _is_told(text: str, lowered: Sequence[str]) -> bool:
    terms = query_terms(text)
    missing = len(terms) - ceil(_VISIBLE_SHARE * len(terms))
    size = max(_PASSAGE, 3 * len(text))
    return any(
        # Cheap first: a word may also be a part of another one.
        _lacks_at_most(missing, terms, passage)
        and _lacks_at_most(missing, terms, frozenset(index_terms(passage)))
        for other in lowered
        if _lacks_at_most(missing, terms, other)
        for passage in _passages(other, size)
    )


def _passages(text: str, size: int) -> Iterator[str]:
    """A text in overlapping pieces: words that stand far apart tell nothing together."""
    for start in range(0, max(1, len(text) - size // 2), size // 2):
        yield text[start : start + size]


def _lacks_at_most(missing: int, terms: Sequence[str], within: Container[str]) -> bool:
    for term in terms:
        if term not in within:
            missing -= 1
            if missing < 0:
                return False
    return True


def selected(
    candidates: Iterable[Scored], fits: Callable[[str], bool], top_k: int
) -> tuple[list[Memory], str]:
    """The memories that are sent, and the text they are sent as.

    Args:
        candidates: In their order.
        fits: Whether a text is small enough.
        top_k: How many at most.
    """
    chosen: list[Memory] = []
    text = ""
    for candidate in candidates:
        if len(chosen) >= top_k:
            break
        longer = rendered([*chosen, candidate.memory])
        if fits(longer):
            chosen.append(candidate.memory)
            text = longer
    return chosen, text


def rendered(memories: Sequence[Memory]) -> str:
    """Memories as a model reads them: each one line, its text a quoted string."""
    return _TEMPLATE.render(lines=[line_of(memory) for memory in memories]).strip()


def line_of(memory: Memory) -> str:
    """One memory as a model reads it.

    The text is a JSON string: whatever stands in it stays inside the quotes and on
    this line.
    """
    details = [f"#{memory.id}"]
    if memory.about:
        details.append(f"about {_quoted(memory.about)}")
    if memory.tags:
        details.append(f"tags {_quoted(', '.join(memory.tags))}")
    return f"{' '.join(details)}: {_quoted(memory.text)}"


def _quoted(text: str) -> str:
    quoted = json.dumps(text, ensure_ascii=False)
    # Role tags of chat formats are special tokens to some models, quoted or not.
    for tag in ("<|", "|>", "</memories"):
        quoted = quoted.replace(tag, f"{tag[0]} {tag[1:]}")
    return quoted
