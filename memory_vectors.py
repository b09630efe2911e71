"""The vectors of memories: compared with a question, and kept up to date.

Invariants:

* Only vectors of the model and dimension of the question are compared with it.
* Vectors that are missing, or of another model or dimension, are made anew in the
  background; one task a session, and a failed one waits for the next occasion.
"""

import asyncio
import logging
from collections.abc import Sequence

import numpy as np

from .embeddings import BATCH_SECONDS, QUESTION_SECONDS, Embedded, Embedder
from .errors import StorageUnavailable
from .memory_store import Memory, MemoryStore, Vector

logger = logging.getLogger("astrbot")

_BATCH = 16


class VectorKeeper:
    """Keeps the vectors of all sessions."""

    def __init__(self, store: MemoryStore, embedder: Embedder) -> None:
        self._store = store
        self._embedder = embedder
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._told: tuple[str, int] | None = None

    async def embed(self, text: str) -> Embedded | None:
        """The embedding of one text, if it can be had in time."""
        return await self._embedder.embed([text], QUESTION_SECONDS)

    async def cosines(
        self, session_id: str, question: str, memories: Sequence[Memory]
    ) -> dict[int, float]:
        """Cosines of a session's memories with a question, by id; empty without embeddings."""
        if not memories or not self._embedder.available:
            return {}
        asked = await self.embed(question)
        if asked is None:
            return {}
        stored = await self._store.vectors(session_id)
        usable = [v for v in stored if _fits(v, asked)]
        if len(usable) < len(memories):
            self._tell(stored, asked)
            self.refresh_later(session_id)
        return cosines(usable, asked)

    def refresh_later(self, session_id: str) -> None:
        """Makes the vectors a session lacks, in the background."""
        running = self._tasks.get(session_id)
        if self._embedder.available and (running is None or running.done()):
            task = asyncio.get_running_loop().create_task(self._refresh(session_id))
            self._tasks[session_id] = task
            task.add_done_callback(lambda _: self._forget(session_id, task))

    def _forget(self, session_id: str, task: asyncio.Task[None]) -> None:
        if self._tasks.get(session_id) is task:
            del self._tasks[session_id]

    async def close(self) -> None:
        """Ends everything in the background."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._embedder.close()

    async def settle(self) -> None:
        """Waits for what runs in the background."""
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _tell(self, stored: Sequence[Vector], asked: Embedded) -> None:
        current = (asked.model, asked.dimension)
        if stored and self._told != current and not any(_fits(v, asked) for v in stored):
            self._told = current
            logger.info(
                "[context_manager] embeddings are now %s with %d dimensions; the vectors of "
                "memories are made anew",
                *current,
            )

    async def _refresh(self, session_id: str) -> None:
        try:
            await self._fill_in(session_id)
        except StorageUnavailable:
            pass
        except Exception:
            logger.exception("[context_manager] %s: vectors of memories not made", session_id)

    async def _fill_in(self, session_id: str) -> None:
        memories = await self._store.all(session_id)
        known = {v.memory_id: v for v in await self._store.vectors(session_id)}
        # The newest first: its vector tells what the provider makes now.
        waiting = sorted(memories, key=lambda m: (m.id in known, -m.id))
        current: Embedded | None = None
        while waiting:
            if current is not None:
                waiting = [m for m in waiting if not _fits(known.get(m.id), current)]
            batch, waiting = waiting[:_BATCH], waiting[_BATCH:]
            if not batch:
                return
            current = await self._embedder.embed([m.text for m in batch], BATCH_SECONDS)
            if current is None:
                return
            vectors = [
                vector_of(m.id, current.model, row)
                for m, row in zip(batch, current.rows, strict=True)
            ]
            await self._store.put_vectors({m.id: m.text for m in batch}, vectors)


def vector_of(memory_id: int, model: str, row: np.ndarray) -> Vector:
    """One row as it is stored."""
    return Vector(memory_id, model, len(row), row.astype("<f4").tobytes())


def _fits(vector: Vector | None, asked: Embedded) -> bool:
    return (
        vector is not None
        and vector.model == asked.model
        and vector.dimension == asked.dimension
        and len(vector.values) == 4 * asked.dimension
    )


def cosines(stored: Sequence[Vector], asked: Embedded) -> dict[int, float]:
    """Cosines of stored vectors with the first of the embeddings, by memory."""
    usable = [v for v in stored if _fits(v, asked)]
    if not usable:
        return {}
    matrix = np.frombuffer(b"".join(v.values for v in usable), dtype="<f4")
    values = matrix.reshape(len(usable), -1) @ asked.rows[0]
    return {v.memory_id: float(c) for v, c in zip(usable, values, strict=True)}
