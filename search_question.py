"""What somebody wants to find, read from what they typed.

Pure. A short text is meant literally: messages that contain it stand first, however
common it is. A long one is a question: its telling words are looked for.
"""

import re
from dataclasses import dataclass
from datetime import datetime

from .message_text import clean_text
from .search_dates import Day, named_days
from .search_terms import QUERY_CHARACTERS, is_cjk, normalised, query_terms

# Each term is a look-up in the index.
MAX_TERMS = 64
# Longer texts are looked for by their terms only.
_LITERAL_CHARACTERS = 40
# Up to so many terms, a pair or at least half of them must be there: of two characters,
# one alone tells nothing.
_FEW_TERMS = 7


@dataclass(frozen=True, slots=True)
class Question:
    """A question as the index is asked.

    Attributes:
        text: The question.
        terms: Its terms, each once.
        needle: The text that counts literally, in unified form; empty for a long question.
        days: The days it names.
    """

    text: str
    terms: tuple[str, ...]
    needle: str
    days: tuple[Day, ...]

    def least_terms(self, known: int) -> int:
        """How many of the terms a message without any longer one of them must hold.

        Args:
            known: Of how many terms it is known which messages hold them.
        """
        few = len(self.terms) <= _FEW_TERMS and all(is_cjk(term) for term in self.terms)
        return max(1, (known + 1) // 2) if few else 1

    def is_in(self, text: str) -> bool:
        """Whether a text contains the question literally."""
        return bool(self.needle) and self.needle in spaced(normalised(text))


def read_question(text: str, now: datetime) -> Question:
    """Reads a question.

    Args:
        text: Anything at all.
        now: Local time, for words like "yesterday".
    """
    text = spaced(clean_text(text).replace("\x00", " "))[:QUERY_CHARACTERS]
    literal = text if len(text) <= _LITERAL_CHARACTERS else ""
    # The long s of "yeſterday" counts as an s in patterns, but is no s.
    days = named_days(normalised(text), now)
    return Question(text, tuple(_limited(query_terms(text))), normalised(literal), tuple(days))


def spaced(text: str) -> str:
    """A text with single spaces in place of all white space."""
    return re.sub(r"\s+", " ", text).strip()


def _limited(terms: list[str]) -> list[str]:
    """At most ``MAX_TERMS`` terms, spread over the question; single characters go first."""
    if len(terms) > MAX_TERMS:
        terms = [term for term in terms if len(term) > 1] or terms
    step = max(1.0, len(terms) / MAX_TERMS)
    return [terms[int(place * step)] for place in range(min(MAX_TERMS, len(terms)))]
