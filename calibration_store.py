"""What is kept of calibrations, learned limits and last reported prompts.

Invariants:

* One row a model and one a conversation, of constant size; models that were not
  used for the longest go first.
* A row that cannot be read is as good as none.
"""

import json
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, NamedTuple

from .calibration import FEATURES, Calibration, Counts
from .database import Database
from .message_text import clean_text
from .model_limits import LearnedLimit

KEPT_MODELS = 500


class ModelKey(NamedTuple):
    """A model as it is calibrated.

    Attributes:
        provider_id: The host's id of the provider.
        model: Model name.
        basis: What texts were counted with, ``vocabulary`` or ``script``.
    """

    provider_id: str
    model: str
    basis: str


@dataclass(frozen=True, slots=True)
class Anchor:
    """The last prompt of a conversation whose size was reported, in tokens."""

    model: ModelKey
    counts: Counts
    reported: int


@dataclass(slots=True)
class ModelState:
    """What is known about a model."""

    calibration: Calibration = field(default_factory=Calibration)
    limit: LearnedLimit | None = None

    def limit_at(self, now: float) -> int | None:
        """The learned limit in tokens, None without one."""
        return self.limit.at(now) if self.limit else None

    def as_row(self) -> tuple[Any, ...]:
        """Calibration, limit, when it was learned and for how long, as they are stored."""
        limit = self.limit
        values = (limit.tokens, limit.learned_at, limit.days) if limit else (None, None, None)
        return (json.dumps(self.calibration.as_json()), *values)


class CalibrationStore:
    """Reads and writes the rows."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def model(self, key: ModelKey) -> ModelState | None:
        """What was kept about a model, or None."""
        async with self._database.reading() as db:
            rows = await db.execute_fetchall(
                "SELECT state, limit_tokens, limit_learned_at, limit_days FROM model_calibrations"
                " WHERE provider_id = ? AND model = ? AND basis = ?",
                _clean(key),
            )
        return next((_state(*row) for row in rows), None)

    async def limited_models(self) -> list[ModelKey]:
        """Models with a learned limit."""
        async with self._database.reading() as db:
            rows = await db.execute_fetchall(
                "SELECT provider_id, model, basis FROM model_calibrations"
                " WHERE limit_tokens IS NOT NULL ORDER BY updated_at DESC LIMIT 50"
            )
        return [ModelKey(*row) for row in rows]

    async def anchor(self, conversation_id: str) -> Anchor | None:
        """The last reported prompt of a conversation, or None."""
        async with self._database.reading() as db:
            rows = await db.execute_fetchall(
                "SELECT provider_id, model, basis, counts, reported FROM reported_prompts"
                " WHERE conversation_id = ?",
                (conversation_id,),
            )
        return next((_anchor(*row) for row in rows), None)

    async def save(
        self,
        key: ModelKey,
        row: tuple[Any, ...],
        conversation_id: str | None,
        anchor: Anchor | None,
        now: int,
    ) -> None:
        """Stores a model's state and, if given, a conversation's last prompt.

        Args:
            key: The model.
            row: ``ModelState.as_row``.
            conversation_id: The conversation of the anchor, None if it has none.
            anchor: Its last reported prompt.
            now: Unix seconds.
        """
        async with self._database.writing() as db:
            await db.execute(
                "INSERT OR REPLACE INTO model_calibrations (provider_id, model, basis, state,"
                " limit_tokens, limit_learned_at, limit_days, updated_at)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (*_clean(key), *row, now),
            )
            await db.execute(
                "DELETE FROM model_calibrations WHERE rowid IN (SELECT rowid FROM"
                " model_calibrations ORDER BY updated_at DESC, rowid DESC LIMIT -1 OFFSET ?)",
                (KEPT_MODELS,),
            )
            if anchor is not None and conversation_id is not None:
                await db.execute(
                    "INSERT OR REPLACE INTO reported_prompts (conversation_id, provider_id, model,"
                    " basis, counts, reported) VALUES (?, ?, ?, ?, ?, ?)",
                    (
                        conversation_id,
                        *_clean(anchor.model),
                        json.dumps(anchor.counts),
                        anchor.reported,
                    ),
                )


def _clean(key: ModelKey) -> tuple[str, ...]:
    return tuple(map(clean_text, key))


def _state(state: str, *stored: Any) -> ModelState:
    limit = None
    if all(isinstance(value, int) and value > 0 for value in stored):
        limit = LearnedLimit(*stored)
    return ModelState(Calibration.from_json(_parsed(state)), limit)


def _anchor(provider_id: str, model: str, basis: str, counts: str, reported: int) -> Anchor | None:
    parsed = _parsed(counts)
    if not isinstance(parsed, list) or len(parsed) != len(FEATURES):
        return None
    if not all(isinstance(count, int | float) and isfinite(count) for count in parsed):
        return None
    return Anchor(ModelKey(provider_id, model, basis), tuple(parsed), reported)


def _parsed(text: Any) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError):
        return None
