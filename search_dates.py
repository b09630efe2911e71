"""The days that a question names: ``2024-05-03``, ``5月3日``, ``昨天``, ``May 3``.

Pure; the clock is an argument. A day without a year is that day of every year.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = (
    r"(?P<name>jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?"
    r"|sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\.?"
)
_YEAR = r"(?P<year>(?:19|20)\d\d)"
_DAY = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?(?!\d)"
_DATES = [
    re.compile(
        rf"(?<!\d){_YEAR}(?P<sep>[-/.])(?P<month>\d{{1,2}})(?P=sep)(?P<day>\d{{1,2}})(?!\d)"
    ),
    re.compile(
        r"(?:(?<!\d)(?P<year>(?:19|20)\d\d)\s*年\s*)?(?<!\d)(?P<month>\d{1,2})\s*月\s*"
        r"(?P<day>\d{1,2})\s*[日号號]"
    ),
    re.compile(rf"\b{_MONTH}\s+{_DAY}(?:\s*,?\s*{_YEAR})?\b", re.IGNORECASE),
    re.compile(rf"\b{_DAY}\s+(?:of\s+)?{_MONTH}(?:\s*,?\s*{_YEAR})?\b", re.IGNORECASE),
]
_RELATIVE = {
    "大前天": 3,
    "前天": 2,
    "昨天": 1,
    "昨日": 1,
    "昨晚": 1,
    "今天": 0,
    "今日": 0,
    "the day before yesterday": 2,
    "yesterday": 1,
    "today": 0,
    "一昨日": 2,
    "きのう": 1,
    "어제": 1,
    "오늘": 0,
}
_RELATIVE_WORDS = re.compile(
    "|".join(sorted(_RELATIVE, key=len, reverse=True))
    + r"|(?P<ago>\d{1,3})\s*(?:天前|days?\s+ago)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Day:
    """A calendar day in local time; of every year if ``year`` is None."""

    year: int | None
    month: int
    day: int

    def holds(self, moment: datetime) -> bool:
        """Whether a local time lies on this day."""
        same_day = (moment.month, moment.day) == (self.month, self.day)
        return same_day and self.year in (None, moment.year)


def named_days(question: str, now: datetime) -> list[Day]:
    """The days that a question names, each once.

    Args:
        question: Any text.
        now: The local time that words like "yesterday" count from.
    """
    return list(dict.fromkeys([*_dates(question), *_relative_days(question, now.date())]))


def _dates(question: str) -> Iterator[Day]:
    for pattern in _DATES:
        for found in pattern.finditer(question):
            parts = found.groupdict()
            name = parts.get("name")
            month = _MONTHS.index(name[:3].lower()) + 1 if name else int(parts["month"])
            year, day = parts.get("year"), int(parts["day"])
            if _exists(int(year) if year else 2000, month, day):
                yield Day(int(year) if year else None, month, day)


def _exists(year: int, month: int, day: int) -> bool:
    try:
        date(year, month, day)
    except ValueError:
        return False
    return True


def _relative_days(question: str, today: date) -> Iterator[Day]:
    for found in _RELATIVE_WORDS.finditer(question):
        ago = int(found["ago"]) if found["ago"] else _RELATIVE[found.group().lower()]
        then = today - timedelta(days=ago)
        yield Day(then.year, then.month, then.day)
