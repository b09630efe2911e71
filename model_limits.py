"""Limits of models that were learned from contexts that proved too long.

Pure. Invariants:

* A learned limit grows back by itself, in daily steps, and is forgotten: after a day
  if a single report is all that speaks for it.
* Between two steps it does not move, so that windows stay where they are.
"""

import re
from dataclasses import dataclass

# A request has to be possible at all.
LEAST_LIMIT = 1024
# What a failure without numbers leaves of the estimate that failed.
_FAILED_SHARE = 0.7
# A request so many times below a stated limit did not fail for its prompt.
_MOST_OFF = 4

_DAY = 86_400
_GROWTH_A_DAY = 1.15
FORGOTTEN_AFTER_DAYS = 7
# One report that is too low may be an odd one; another like it is not.
DOUBTED_AFTER_DAYS = 1
_SAME_LIMIT = 0.25

_NUMBER = r"([1-9][\d,_]{2,12})"
# Providers' own words; most name the limit. The first that is found counts.
_STATED = (
    rf"maximum input length of {_NUMBER}",
    rf"\d \+ \d+ > {_NUMBER}",
    rf"> {_NUMBER} maximum",
    rf"{_NUMBER} maximum context length",
    rf"(?:maximum|model'?s?) (?:context|prompt|model) length(?: is| of| only)*\D{{0,3}}{_NUMBER}",
    rf"tokens? allowed\D{{0,10}}{_NUMBER}",
    rf"input length should be \[\d+, ?{_NUMBER}\]",
    rf"max_seq_len\D{{0,3}}{_NUMBER}",
    rf"n_ctx\D{{0,4}}{_NUMBER}",
    rf"must be <= {_NUMBER}",
    rf"(?:token|configured|the) limit(?: of)?\W{{0,3}}{_NUMBER}",
    rf"tokens per min\D{{0,20}}limit {_NUMBER}",
    rf"(?:context[ _](?:window|length|size|limit)|maximum (?:\w+ )?length)(?: is| of| only)*"
    rf"\W{{0,3}}{_NUMBER}",
    rf"最大(?:上下文|输入)?长度\D{{0,20}}{_NUMBER}",
)
# What of a stated limit is kept for the answer.
_OUTPUT = re.compile(
    r"(\d+) (?:in the (?:completion|output)|for the completion|output tokens)|\d \+ (\d+) > \d"
)
_TOO_LONG = re.compile(
    r"maximum (?:context|prompt|model|input) length|context[ _](?:length|window|size|limit)"
    r"[^.\n]{0,60}exceed|(?:longer|greater) than the (?:model's |maximum )*(?:context|model) length"
    r"|exceed[^.\n]{0,60}(?:context|max(?:imum)? (?:number of|message) tokens"
    r"|max(?:imum)?(?: \w+)? length|token limit)"
    r"|prompt token count[^.\n]{0,20}exceed|tokens? exceeds? the configured limit"
    r"|prompt(?: is)? too long|input is too long|tokens? too long|too many (?:input )?tokens"
    r"|tokens.{0,25}must be (?:<=|less than)|context the overflows"
    r"|reduce the length of the messages|input length should be \["
    r"|(?:上下文|输入|消息|token|prompt)[^。\n]{0,20}(?:超过|超出|过长|超限|超长)",
    re.IGNORECASE,
)
# Words of errors about something else that sound alike.
_OTHER_MATTER = re.compile(
    r"tokens per (?:min|day)|please wait|throttl|rate.?limit|quota|too many requests"
    r"|图片|图像|频率|频繁|限流|额度|余额|配额|有效期|每分钟|每日|每天",
    re.IGNORECASE,
)
# A rate limit that a single request is above will refuse it for ever.
_TOO_LARGE_AT_ONCE = re.compile("request too large for", re.IGNORECASE)
_READ = 4000


@dataclass(frozen=True, slots=True)
class LearnedLimit:
    """A prompt size that a model took after a longer one had proved too long.

    Attributes:
        tokens: The size when it was learned.
        learned_at: Unix seconds.
        days: After how many it is forgotten.
    """

    tokens: int
    learned_at: int
    days: int = FORGOTTEN_AFTER_DAYS

    def at(self, now: float) -> int | None:
        """The limit in tokens now; None once it is forgotten."""
        days = max(0, int((now - self.learned_at) // _DAY))
        if days >= self.days:
            return None
        return int(self.tokens * _GROWTH_A_DAY**days)


def learned(tokens: int, now: int, before: LearnedLimit | None, *, stated: bool) -> LearnedLimit:
    """A limit that was just learned.

    Args:
        tokens: The prompt size that is left.
        now: Unix seconds.
        before: What was learned last, even if it is forgotten by now.
        stated: Whether an error said so; else it is concluded from one report.
    """
    again = before is not None and (
        before.at(now) is not None or abs(tokens / before.tokens - 1) <= _SAME_LIMIT
    )
    return LearnedLimit(
        tokens, now, FORGOTTEN_AFTER_DAYS if stated or again else DOUBTED_AFTER_DAYS
    )


def says_too_long(text: str) -> bool:
    """Whether an error text means that the context was too long."""
    text = text[:_READ]
    if _TOO_LARGE_AT_ONCE.search(text):
        return True
    return bool(_TOO_LONG.search(text)) and not _OTHER_MATTER.search(text)


def limit_after_failure(text: str, estimated: int) -> int | None:
    """The limit to use after a request failed as too long.

    Args:
        text: The provider's error text.
        estimated: Estimated tokens of the failed request.

    Returns:
        What the text leaves for a prompt, if the request was above it; else a good
        part of what failed. In tokens, never below what a request needs at all. None
        if it was the answer's length or the tools' results that did not fit.
    """
    room = _stated_room(text[:_READ])
    if room is not None and (room < LEAST_LIMIT or room > _MOST_OFF * estimated):
        return None
    if room is None or room >= estimated:
        room = int(estimated * _FAILED_SHARE)
    return max(LEAST_LIMIT, room)


def _stated_room(text: str) -> int | None:
    """Tokens that an error text leaves for a prompt; None if it does not say."""
    found = (re.search(pattern, text, re.IGNORECASE) for pattern in _STATED)
    first = next(filter(None, found), None)
    if first is None:
        return None
    stated = int(re.sub(r"\D", "", first[1]))
    output = _OUTPUT.search(text)
    if output is None or first.re.pattern == _STATED[0]:
        return stated
    return stated - int(output[1] or output[2])
