"""What requests held and what the provider reported, one by one and by day.

Invariants:

* A record is written in a task of its own, after the reply; neither a slow nor a
  failed write can touch a request.
* Each session keeps its newest ``KEPT`` records and ``KEPT_DAYS`` days of sums.
* Usage that was not reported is None, never zero or a guess.
"""

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from typing import Any

from .database import Database
from .errors import StorageUnavailable

logger = logging.getLogger("astrbot")

KEPT = 200
KEPT_DAYS = 366


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of the last model call of a request, as the provider reported them."""

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request; sizes in tokens, ``time`` in unix seconds.

    Attributes:
        sections: Estimated size by section; ``tool_steps`` is what tool calls
            added until the last model call, which is the one that is reported.
        first_turn: The first finished turn that was sent, of ``total_turns``.
        milliseconds: What the request waited for the plugin, not for the model.
        lightened: Messages that were sent in a lighter form.
        reason: Why turns were left out whatever the budget; empty if it was the budget.
    """

    session_id: str
    time: int
    model: str
    sections: dict[str, int]
    estimated: int
    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    first_turn: int
    left_out_turns: int
    milliseconds: float
    budget: int = 0
    total_turns: int = 0
    left_out_messages: int = 0
    lightened: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Day:
    """Sums of a session's requests on one day of the server's calendar.

    Attributes:
        day: ``YYYY-MM-DD``.
        requests: How many there were.
        reported: How many of them have reported usage; the tokens are only theirs.
        estimated: Estimated tokens of all of them.
        milliseconds: What they waited for the plugin.
    """

    day: str
    requests: int
    reported: int
    estimated: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    milliseconds: float


_COLUMNS = ", ".join(RequestRecord.__slots__)
_PLACES = ", ".join("?" * len(RequestRecord.__slots__))
_SUMS = Day.__slots__[1:]
_ADD_DAY = (
    f"INSERT INTO usage_days (session_id, day, {', '.join(_SUMS)})"
    f" VALUES (?, ?, {', '.join('?' * len(_SUMS))}) ON CONFLICT (session_id, day) DO UPDATE SET "
    + ", ".join(f"{name} = {name} + excluded.{name}" for name in _SUMS)
)


class RequestLog:
    """Reads and writes the records."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._writes: set[asyncio.Task[None]] = set()

    def write_later(self, make: Callable[[], RequestRecord]) -> None:
        """Writes a record in the background.

        Args:
            make: Makes the record; runs in a thread, because it may count tokens.
        """
        task = asyncio.get_running_loop().create_task(self._write(make))
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)

    async def _write(self, make: Callable[[], RequestRecord]) -> None:
        try:
            record = await asyncio.to_thread(make)
            # A request that outlives its plugin instance is not recorded.
            if not self._database.closed:
                with contextlib.suppress(StorageUnavailable):
                    await self.add(record)
        except Exception:
            logger.exception("[context_manager] a request could not be recorded")

    async def settle(self) -> None:
        """Waits for the writes that have begun."""
        await asyncio.gather(*self._writes, return_exceptions=True)

    async def add(self, record: RequestRecord) -> None:
        """Stores a record, adds it to its day, and drops what is beyond the bounds."""
        values = [getattr(record, name) for name in RequestRecord.__slots__]
        values[RequestRecord.__slots__.index("sections")] = json.dumps(record.sections)
        async with self._database.writing() as db:
            await db.execute(f"INSERT INTO requests ({_COLUMNS}) VALUES ({_PLACES})", values)
            await db.execute(
                "DELETE FROM requests WHERE session_id = ? AND id <= (SELECT id FROM requests"
                " WHERE session_id = ? ORDER BY id DESC LIMIT 1 OFFSET ?)",
                (record.session_id, record.session_id, KEPT),
            )
            day = date.fromtimestamp(record.time).isoformat()
            await db.execute(_ADD_DAY, (record.session_id, day, *_sums(record)))
            await db.execute(
                "DELETE FROM usage_days WHERE session_id = ? AND day <= (SELECT day FROM usage_days"
                " WHERE session_id = ? ORDER BY day DESC LIMIT 1 OFFSET ?)",
                (record.session_id, record.session_id, KEPT_DAYS),
            )

    async def newest(self, session_id: str, limit: int = KEPT) -> list[RequestRecord]:
        """Records of a session, newest first."""
        async with self._database.reading() as db:
            rows = await db.execute_fetchall(
                f"SELECT {_COLUMNS} FROM requests WHERE session_id = ? ORDER BY id DESC LIMIT ?",
                (session_id, limit),
            )
        return [_record(row) for row in rows]

    async def days(self, session_id: str, limit: int = KEPT_DAYS) -> list[Day]:
        """Sums of a session by day, newest first; days without a request are left out."""
        async with self._database.reading() as db:
            rows = await db.execute_fetchall(
                f"SELECT day, {', '.join(_SUMS)} FROM usage_days WHERE session_id = ?"
                " ORDER BY day DESC LIMIT ?",
                (session_id, limit),
            )
        return [Day(*row) for row in rows]


def _sums(record: RequestRecord) -> tuple[float, ...]:
    tokens = (record.prompt_tokens, record.cached_tokens, record.output_tokens)
    reported = record.prompt_tokens is not None
    return (1, int(reported), record.estimated, *(t or 0 for t in tokens), record.milliseconds)


def _record(row: Any) -> RequestRecord:
    values = dict(zip(RequestRecord.__slots__, row, strict=True))
    return RequestRecord(**values | {"sections": json.loads(values["sections"])})
