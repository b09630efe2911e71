"""Limits of models that were learned from contexts that proved too long.

Pure. Invariants:

* A learned limit grows back by itself, in daily steps, and is forgotten.
* Between two steps it does not move, so that windows stay where they are.
"""

import re
from dataclasses import dataclass

# A request has to be possible at all.
LEAST_LIMIT = 1024
# What a failure without numbers leaves of the estimate that failed.
_FAILED_SHARE = 0.7

_DAY = 86_400
_GROWTH_A_DAY = 1.15
FORGOTTEN_AFTER_DAYS = 7

_NUMBER = r"([1-9][\d,_]{2,12})"
# Providers' own words; most name the limit.
_STATED = (
    rf"maximum context length (?:is|of)\D{{0,20}}{_NUMBER}",
    rf"tokens? allowed\D{{0,10}}{_NUMBER}",
    rf"> {_NUMBER} maximum",
    rf"input length should be \[\d+, ?{_NUMBER}\]",
    rf"(?:context[ _](?:window|length|size|limit)|maximum (?:input )?length)\D{{0,30}}{_NUMBER}",
    rf"最大(?:上下文|输入)?长度\D{{0,20}}{_NUMBER}",
)
_TOO_LONG = re.compile(
    r"maximum context length|context[ _](?:length|window|size|limit)[^.\n]{0,60}exceed"
    r"|exceed[^.\n]{0,60}(?:context|maximum number of tokens|max_tokens|maximum length)"
    r"|context_length_exceeded|prompt is too long|input is too long|too many (?:input )?tokens"
    r"|reduce the length of the messages|input length should be \["
    r"|(?:上下文|输入|消息|token)[^。\n]{0,20}(?:超过|超出|过长|超限)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class LearnedLimit:
    """A prompt size that a model took after a longer one had proved too long.

    Attributes:
        tokens: The size when it was learned.
        learned_at: Unix seconds.
    """

    tokens: int
    learned_at: int

    def at(self, now: float) -> int | None:
        """The limit in tokens now; None once it is forgotten."""
        days = max(0, int((now - self.learned_at) // _DAY))
        if days >= FORGOTTEN_AFTER_DAYS:
            return None
        return int(self.tokens * _GROWTH_A_DAY**days)


def says_too_long(text: str) -> bool:
    """Whether an error text means that the context was too long."""
    return _TOO_LONG.search(text[:4000]) is not None


def limit_after_failure(text: str, estimated: int) -> int:
    """The limit to use after a request failed as too long.

    Args:
        text: The provider's error text.
        estimated: Estimated tokens of the failed request.

    Returns:
        What the text states, if the request was above it; else a good part of
        what failed. In tokens, never below what a request needs at all.
    """
    limit = int(estimated * _FAILED_SHARE)
    for pattern in _STATED:
        if found := re.search(pattern, text[:4000], re.IGNORECASE):
            stated = int(re.sub(r"\D", "", found[1]))
            if LEAST_LIMIT <= stated < estimated:
                limit = stated
            break
    return max(LEAST_LIMIT, limit)
