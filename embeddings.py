"""Embeddings from the host's provider, as far as they come in time.

Invariants:

* A call ends within its seconds, whatever the provider does, and never raises.
* After a failure nobody waits for the provider again until it has answered a call in
  the background in time. One log line says that it failed, one that it is back.
* What is handed out are finite vectors of one length, scaled to length 1.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from .host import Host

logger = logging.getLogger("astrbot")

# How long a question may keep a reply waiting.
QUESTION_SECONDS = 1.0
# How long memories may take that are embedded in the background.
BATCH_SECONDS = 20.0
# How long a call may take to notice that it is given up when the plugin stops.
CLOSE_SECONDS = 1.0
FIRST_PAUSE, LONGEST_PAUSE = 60.0, 1800.0


@dataclass(frozen=True, slots=True)
class Embedded:
    """Embeddings of some texts.

    Attributes:
        model: What made them.
        rows: One row a text, 32-bit floats of length 1, shape (texts, dimension).
    """

    model: str
    rows: np.ndarray

    @property
    def dimension(self) -> int:
        """Length of the vectors."""
        return self.rows.shape[1]


class Embedder:
    """Asks the host's embedding provider, and leaves it alone while it does not work."""

    def __init__(self, host: Host, clock: Callable[[], float] = time.monotonic) -> None:
        self._host = host
        self._clock = clock
        self._pause = 0.0
        self._retry_at = 0.0
        self._tasks: set[asyncio.Task] = set()

    @property
    def available(self) -> bool:
        """Whether the host has an embedding provider at all."""
        return self._host.embedding_model() is not None

    async def embed(self, texts: Sequence[str], seconds: float) -> Embedded | None:
        """Embeds texts; None without a provider, or if it does not answer in time."""
        if not texts or not self.available:
            return None
        if self._pause:
            if self._clock() >= self._retry_at:
                self._retry_at = self._clock() + self._pause
                self._start(self._attempt(texts[:1], QUESTION_SECONDS))
            return None
        return await self._attempt(texts, seconds)

    async def settle(self) -> None:
        """Waits for the calls that run in the background."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def close(self) -> None:
        """Ends the calls that still run; one that ignores it is left alone."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSE_SECONDS)

    def _start(self, work) -> asyncio.Task:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task) -> None:
        self._tasks.discard(task)
        # A call that was given up may still raise; nobody else looks.
        if not task.cancelled():
            task.exception()

    async def _attempt(self, texts: Sequence[str], seconds: float) -> Embedded | None:
        model = self._host.embedding_model() or ""
        # Not awaited itself: a provider may also ignore that it is cancelled.
        call = self._start(self._host.embed(list(texts)))
        done, _ = await asyncio.wait([call], timeout=seconds)
        if not done:
            call.cancel()
            return self._failed(f"no answer within {seconds:g} s")
        if call.cancelled():
            return self._failed("cancelled")
        if (error := call.exception()) is not None:
            return self._failed(f"{type(error).__name__}: {error}"[:300])
        rows = _unit_rows(call.result(), len(texts))
        if rows is None:
            return self._failed("the answer holds no usable vectors")
        self._worked()
        return Embedded(model, rows)

    def _failed(self, reason: str) -> None:
        if not self._pause:
            logger.warning(
                "[context_manager] embedding provider left aside, memories are found by "
                "keywords only: %s",
                reason,
            )
        self._pause = min(self._pause * 2 or FIRST_PAUSE, LONGEST_PAUSE)
        self._retry_at = self._clock() + self._pause

    def _worked(self) -> None:
        if self._pause:
            self._pause = 0.0
            logger.info("[context_manager] embedding provider usable again")


def _unit_rows(vectors: object, count: int) -> np.ndarray | None:
    """Vectors as rows of length 1; None if they are anything else than that."""
    try:
        rows = np.asarray(vectors, dtype=np.float32)
    except (TypeError, ValueError):
        return None
    if rows.ndim != 2 or rows.shape[0] != count or rows.shape[1] == 0:
        return None
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    if not np.isfinite(lengths).all() or not lengths.all():
        return None
    return rows / lengths
