"""The second stage of a search: candidates are scored again with what stands around them.

Pure. An index finds messages by single terms; in a chat the answer to a question often
shares its words with the messages before it. So a passage's score is BM25 over its own
text plus a smaller share of its neighbours', times how much of the question was found.
Memories have no neighbours and are ranked by the same rule.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from .search_terms import index_terms, normalised

# Weight of the messages around a hit by their distance: the question before an answer
# says more about it than the reply behind it.
NEIGHBOUR_WEIGHTS = {-2: 0.15, -1: 0.4, 1: 0.2, 2: 0.15}

# BM25: how soon repetitions stop counting, and how much a long text is held back.
_SATURATION, _LENGTH_PENALTY = 0.9, 0.3
_NAMED_SENDER = 1.2
_NAMED_DAY = 4.0


@dataclass(frozen=True, slots=True)
class TermCounts:
    """The terms of one text.

    Attributes:
        counts: How often each term occurs.
        length: Of the text, in characters.
    """

    counts: Mapping[str, int]
    length: float

    @classmethod
    def of(cls, text: str, sender: str = "") -> "TermCounts":
        """Counts a text together with who said it."""
        terms = index_terms(f"{sender}\n{text}" if sender else text)
        return cls(Counter(terms), len(text))


@dataclass(frozen=True, slots=True)
class Passage:
    """A candidate with what stands around it.

    Attributes:
        own: Its own terms.
        neighbours: The texts around it by distance (-2, -1, 1, 2).
        sender: Who said it; empty if nobody did.
        on_named_day: Whether it was said on a day that the question names.
    """

    own: TermCounts
    neighbours: Mapping[int, TermCounts] = field(default_factory=dict)
    sender: str = ""
    on_named_day: bool = False


@dataclass(frozen=True, slots=True)
class Statistics:
    """What is known of the whole collection that is searched.

    Attributes:
        total: Number of texts.
        frequencies: In how many of them each term of the question occurs.
        average_length: Of a text, in characters.
    """

    total: int
    frequencies: Mapping[str, int]
    average_length: float

    @classmethod
    def of(cls, texts: Collection[TermCounts]) -> "Statistics":
        """Counts a collection that is small enough to be read as a whole."""
        frequencies = Counter(term for text in texts for term in text.counts)
        lengths = sum(text.length for text in texts)
        return cls(len(texts), frequencies, lengths / len(texts) if texts else 1.0)

    def weights(self, terms: Iterable[str]) -> dict[str, float]:
        """How much each term tells texts apart; always above 0."""
        weights = {}
        for term in terms:
            found = min(self.frequencies.get(term, 0), self.total)
            weights[term] = math.log(1 + (self.total - found + 0.5) / (found + 0.5))
        return weights


def scores(
    question: str, terms: Sequence[str], passages: Sequence[Passage], statistics: Statistics
) -> list[float]:
    """Scores passages against a question.

    Args:
        question: The question as asked.
        terms: Its terms, each once.
        passages: The candidates.
        statistics: Of the collection they come from.

    Returns:
        One score a passage, in their order; 0 where no term was found.
    """
    weights = statistics.weights(terms)
    question = normalised(question)
    return [_score(question, weights, passage, statistics) for passage in passages]


def _score(
    question: str, weights: Mapping[str, float], passage: Passage, statistics: Statistics
) -> float:
    found: set[str] = set()
    score = _similarity(weights, passage.own, statistics, found)
    for distance, text in passage.neighbours.items():
        share = NEIGHBOUR_WEIGHTS.get(distance, 0)
        score += share * _similarity(weights, text, statistics, found)
    if not found:
        return 0.0
    score *= math.sqrt(len(found) / len(weights))
    if passage.sender and normalised(passage.sender) in question:
        score *= _NAMED_SENDER
    return score * _NAMED_DAY if passage.on_named_day else score


def _similarity(
    weights: Mapping[str, float], text: TermCounts, statistics: Statistics, found: set[str]
) -> float:
    """BM25 of one text; the terms it has are added to ``found``."""
    relative = text.length / max(statistics.average_length, 1.0)
    limit = _SATURATION * (1 - _LENGTH_PENALTY + _LENGTH_PENALTY * relative)
    score = 0.0
    for term, weight in weights.items():
        count = text.counts.get(term)
        if count:
            found.add(term)
            score += weight * count * (1 + _SATURATION) / (count + limit)
    return score
