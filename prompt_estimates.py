"""What a request will cost in tokens, and how sure that is.

Holds the calibration of every model, the last reported prompt of every
conversation, and the learned limits. Invariants:

* An estimate is fixed when a request is built; later reports do not change it.
* Whatever a provider reports, and whether or not the database works, an estimate
  can be made and nothing raises.
* In memory and in the database everything is bounded by models and conversations.
"""

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .bounded import BoundedMap
from .calibration import (
    CONTRADICTION,
    MEDIA,
    NOTHING,
    PROMPT,
    Calibration,
    Counts,
    minus,
    plausible,
)
from .calibration_store import Anchor, CalibrationStore, ModelKey, ModelState
from .errors import StorageUnavailable
from .host_types import ChatProvider
from .model_limits import LEAST_LIMIT, learned, limit_after_failure, says_too_long
from .tokens import TokenCounter

logger = logging.getLogger("astrbot")

# Models held in memory; the database has more.
REMEMBERED_MODELS = 64
# A smaller stated window hardly holds the system prompt and tools of a bare host. There
# only the host's own estimate counts, which leaves the host something to cut in a tool loop.
LEAST_WINDOW = 4096
# A request shortly after the start waits this long, to be counted like later ones.
_VOCABULARY_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Estimate:
    """How the tokens of one request are estimated.

    Attributes:
        models: The model the request is meant for, and its fallbacks.
        conversation_id: The conversation, None if it has none.
        weights: Tokens a unit of each feature; the conversation's last reported prompt
            is exact with them.
        margin: Share by which the estimate may be too low.
        model_limit: Tokens that the model and its fallbacks take, as stated or as
            learned; None if nothing is known.
    """

    models: tuple[ModelKey, ...]
    conversation_id: str | None
    weights: tuple[float, ...]
    margin: float
    model_limit: int | None = None

    def tokens(self, counts: Counts) -> int:
        """Tokens of something counted."""
        return round(math.sumprod(self.weights, counts))

    @property
    def framing(self) -> int:
        """Tokens of a prompt beside its messages and tools."""
        return self.tokens(PROMPT)


@dataclass(frozen=True, slots=True)
class Sent:
    """What a reported call held.

    Attributes:
        counts: Everything.
        least: Estimated tokens of what the host never drops.
    """

    counts: Counts
    least: int = 0


@dataclass(slots=True)
class PromptEstimates:
    """Makes estimates and learns from what providers report.

    Attributes:
        tokens: Counts texts.
        store: Where everything is kept; None if there is no database.
        clock: Unix seconds.
        anchors: The last reported prompts by conversation, as a bounded memory.
    """

    tokens: TokenCounter
    store: CalibrationStore | None
    clock: Callable[[], float]
    anchors: BoundedMap
    _models: BoundedMap = field(default_factory=lambda: BoundedMap(REMEMBERED_MODELS, math.inf))
    _saves: set[asyncio.Task[None]] = field(default_factory=set)

    async def estimate(
        self,
        providers: Sequence[ChatProvider],
        conversation_id: str | None,
        sample: Counts = NOTHING,
    ) -> Estimate:
        """How to estimate the next request.

        Args:
            providers: The chat model and its fallbacks, in order.
            conversation_id: The conversation it belongs to.
            sample: Counts of something like the prompt, for a model that nothing is
                known of.
        """
        await self.tokens.settled(_VOCABULARY_SECONDS)
        keys = tuple(ModelKey(p.provider_id, p.model, self._basis) for p in providers)
        states = [await self._state(key) for key in keys]
        calibration = states[0].calibration if states else Calibration()
        anchor = await self._anchor(conversation_id)
        published = calibration.published
        fitted = _fitted(calibration, published, anchor, keys[0]) if keys else None
        now = self.clock()
        # The host keeps to a stated window by its own estimate, which may be far too low.
        windows = (p.max_context_tokens for p in providers if p.max_context_tokens >= LEAST_WINDOW)
        limits = (*windows, *(state.limit_at(now) for state in states))
        return Estimate(
            keys,
            conversation_id,
            tuple(fitted or published),
            calibration.margin(fitted is not None, sample),
            min(filter(None, limits), default=None),
        )

    def report(self, estimate: Estimate, sent: Sent, reported: Any, answered_by: str = "") -> None:
        """Learns from the usage that a provider reported for a whole prompt.

        Args:
            estimate: What the request was built with.
            sent: What the reported call held.
            reported: Prompt tokens, cached ones included, as they came.
            answered_by: Name of the model that answered, if it is known.
        """
        key = _answering(estimate.models, answered_by)
        state = self._models.get(key)
        if state is None or not plausible(reported) or key.basis != self._basis:
            return
        calibration, conversation_id = state.calibration, estimate.conversation_id
        news = _news(calibration, self.anchors.get(conversation_id or ""), key, sent, reported)
        unknown, size = news.unknown, news.size
        if calibration.contradicts(news.expected, unknown, reported, news.pictures):
            if not self._contradicted(key, state, estimate, sent, news.expected, reported):
                self._save(key, state)
                return
            unknown, size = sent.counts, reported
        elif news.stalls(calibration, reported):
            # Each such report alone looks right; from an older one on they add up.
            return
        elif calibration.calibrated:
            calibration.agree(news.expected, reported)
        calibration.observe(unknown, size, news.pictures)
        anchor = Anchor(key, sent.counts, reported)
        if conversation_id:
            self.anchors[conversation_id] = anchor
        self._save(key, state, conversation_id, anchor)

    def _contradicted(
        self,
        key: ModelKey,
        state: ModelState,
        estimate: Estimate,
        sent: Sent,
        expected: float,
        reported: int,
    ) -> bool:
        """Takes in a report that is far off; True if the model is learned anew."""
        calibration = state.calibration
        least = sent.least * (1 - CONTRADICTION)
        shortened = least <= reported < expected * (1 - CONTRADICTION)
        limit = state.limit_at(self.clock())
        if shortened and limit is not None and (estimate.model_limit or math.inf) > limit:
            # Built before the limit was known: it met the same one, and says no more.
            return False
        if calibration.repeats(expected, reported):
            # The same factor once more: the model counts differently now.
            state.limit = None
        elif shortened and calibration.calibrated and reported >= LEAST_LIMIT:
            # The host drops the oldest messages of what was too long and tries again.
            self._limit(key, state, round(expected), reported, stated=False)
        return calibration.contradict(expected, reported)

    def failed(self, estimate: Estimate, estimated: int, text: str) -> bool:
        """Learns from the error text of a request that got no answer.

        Returns:
            Whether the text says that the prompt was too long.
        """
        key = next(iter(estimate.models), None)
        state = self._models.get(key)
        if state is None or not says_too_long(text):
            return False
        limit = limit_after_failure(text, estimated)
        if limit is None:
            return False
        self._limit(key, state, estimated, limit, stated=True)
        self._save(key, state)
        return True

    def _limit(
        self, key: ModelKey, state: ModelState, estimated: int, limit: int, *, stated: bool
    ) -> None:
        state.limit = learned(limit, int(self.clock()), state.limit, stated=stated)
        logger.warning(
            "[context_manager] %s: a context of about %d tokens was too long; requests are kept "
            "under %d for %d days",
            key.model,
            estimated,
            limit,
            state.limit.days,
        )

    def learned_limits(self) -> list[tuple[ModelKey, int]]:
        """Models whose limit is lowered now, with the limit in tokens."""
        now = self.clock()
        limits = ((key, self._models[key].limit_at(now)) for key in self._models)
        return [(key, limit) for key, limit in limits if limit is not None]

    async def load_limits(self) -> None:
        """Takes the learned limits from the database, so that they can be shown."""
        if self.store is not None:
            with contextlib.suppress(StorageUnavailable):
                for key in await self.store.limited_models():
                    await self._state(key)

    async def settle(self) -> None:
        """Waits for the writes that have begun."""
        await asyncio.gather(*self._saves, return_exceptions=True)

    @property
    def _basis(self) -> str:
        return "vocabulary" if self.tokens.ready else "script"

    async def _state(self, key: ModelKey) -> ModelState:
        state = self._models.get(key)
        if state is None and self.store is not None:
            with contextlib.suppress(StorageUnavailable):
                state = await self.store.model(key)
        # Another request may have read and changed it meanwhile.
        state = self._models.get(key) or state or ModelState()
        self._models[key] = state
        return state

    async def _anchor(self, conversation_id: str | None) -> Anchor | None:
        if conversation_id is None:
            return None
        anchor = self.anchors.get(conversation_id)
        if anchor is None and self.store is not None:
            with contextlib.suppress(StorageUnavailable):
                anchor = await self.store.anchor(conversation_id)
        anchor = self.anchors.get(conversation_id) or anchor
        if anchor is not None:
            self.anchors[conversation_id] = anchor
        return anchor

    def _save(
        self,
        key: ModelKey,
        state: ModelState,
        conversation_id: str | None = None,
        anchor: Anchor | None = None,
    ) -> None:
        """Writes in the background; the row is made at once, the state may move on."""
        if self.store is None:
            return
        row = state.as_row()
        task = asyncio.get_running_loop().create_task(
            self._write(key, row, conversation_id, anchor)
        )
        self._saves.add(task)
        task.add_done_callback(self._saves.discard)

    async def _write(
        self,
        key: ModelKey,
        row: tuple[Any, ...],
        conversation_id: str | None,
        anchor: Anchor | None,
    ) -> None:
        try:
            # The database logs its failures; what was learned stays in memory.
            with contextlib.suppress(StorageUnavailable):
                await self.store.save(key, row, conversation_id, anchor, int(self.clock()))
        except Exception:
            logger.exception("[context_manager] what %s taught could not be kept", key.model)


def _answering(models: Sequence[ModelKey], name: str) -> ModelKey | None:
    """The model that answered: a fallback only if it is named and the first is not."""
    first = next(iter(models), None)
    if first is None or name == first.model:
        return first
    return next((model for model in models if model.model == name), first)


def _fitted(
    calibration: Calibration, weights: Sequence[float], anchor: Anchor | None, key: ModelKey
) -> list[float] | None:
    """Weights by which the anchor's prompt is exact; None without one."""
    if anchor is None or anchor.model != key:
        return None
    return calibration.fitted(weights, anchor.counts, anchor.reported)


@dataclass(frozen=True, slots=True)
class _News:
    """What a report tells beyond what was known.

    Attributes:
        anchored: Whether something was, from the conversation's last report.
        unknown: Counts of what the prompt has beyond that.
        size: Reported tokens of the same.
        added: Estimated tokens of the same.
        expected: Estimated tokens of the whole prompt.
        pictures: Flat tokens of media that may be others than those known.
    """

    anchored: bool
    unknown: Counts
    size: int
    added: float
    expected: float
    pictures: float

    def stalls(self, calibration: Calibration, reported: int) -> bool:
        """Whether the prompt grew by text alone and its reported size did not."""
        error = 1 - reported / max(1.0, self.expected)
        text = self.anchored and not self.pictures
        return text and calibration.stalls(self.unknown, self.added, self.size, error)


def _news(
    calibration: Calibration, anchor: Anchor | None, key: ModelKey, sent: Sent, reported: int
) -> _News:
    fitted, counts = _fitted(calibration, calibration.weights, anchor, key), sent.counts
    weights = fitted or calibration.weights
    unknown, size, pictures = counts, reported, counts[MEDIA]
    if fitted is not None:
        unknown, size = minus(counts, anchor.counts), reported - anchor.reported
        pictures += anchor.counts[MEDIA]
    added, expected = math.sumprod(weights, unknown), math.sumprod(weights, counts)
    return _News(fitted is not None, unknown, size, added, expected, pictures)
