"""The long-term memory of a session: saved, found, forgotten, recalled.

Used alike by the model's tools, the page, the commands and the requests. Invariants:

* Every call is bound to one session.
* Whatever is added passes the same rules, whoever adds it.
* A recall never fails and never waits for longer than an embedding may take.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .embeddings import Embedded, Embedder
from .errors import MemoryRefused, StorageUnavailable
from .host import Host
from .memory import (
    NEAR_COSINE,
    Entry,
    Known,
    in_fixed_memory,
    key_of,
    made_from,
    of_one_person,
    repeated,
    same_facts,
    says_the_same,
)
from .memory_recall import Scored, keyword_scores, ranked, searched, selected, unseen
from .memory_store import Memory, MemoryStore, Vector, refuse_full
from .memory_vectors import VectorKeeper, cosines
from .settings import Settings
from .storage import Session, Storage

logger = logging.getLogger("astrbot")

# Whatever stands further down is not worth comparing with a long window.
_CANDIDATES = 20


@dataclass(frozen=True, slots=True)
class Recall:
    """What one request gets to read of its session's memories."""

    memories: list[Memory]
    text: str


class LongTermMemory:
    """The memories of all sessions."""

    def __init__(
        self,
        storage: Storage,
        host: Host,
        settings: Settings,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.store = MemoryStore(storage.database)
        self.vectors = VectorKeeper(self.store, Embedder(host))
        self._settings = settings
        self._clock = clock
        self._notes: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Ends what runs in the background; short writes end by themselves."""
        await asyncio.gather(*self._notes, return_exceptions=True)
        await self.vectors.close()

    # Saving

    async def save(
        self, session: Session, entry: Entry, source: str, shown: Sequence[Known] = ()
    ) -> Memory:
        """Remembers something.

        Args:
            session: The session.
            entry: A well-formed memory.
            source: ``model``, ``user`` or ``command``.
            shown: The memories that the model has been shown in this request.

        Raises:
            MemoryRefused: It repeats something, or there is no room.
        """
        session_id = session.session_id
        if in_fixed_memory(entry, session.fixed_memory):
            raise MemoryRefused("memory_in_fixed")
        memories = await self.store.all(session_id)
        # What was forgotten meanwhile is about to be corrected.
        there = [known for known in shown if any(known.id == m.id for m in memories)]
        if (origin := made_from(entry, there)) is not None:
            raise MemoryRefused("memory_repeated", id=origin.id, text=origin.text)
        # Before the embedding: most repeats are seen without one.
        self._refuse_repeat(entry, memories)
        embedded = await self.vectors.embed(entry.text)

        def check(memories: list[Memory], vectors: list[Vector]) -> None:
            self._refuse_repeat(entry, memories)
            if embedded is not None:
                _refuse_same_meaning(entry, memories, vectors, embedded)
            refuse_full(len(memories), self._settings.memory_max_entries)

        vector = None
        if embedded is not None:
            row = embedded.rows[0]
            vector = (embedded.model, row.astype("<f4").tobytes(), len(row))
        memory = await self.store.add(session_id, entry, source, int(self._clock()), check, vector)
        if embedded is None:
            self.vectors.refresh_later(session_id)
        return memory

    @staticmethod
    def _refuse_repeat(entry: Entry, memories: Sequence[Memory]) -> None:
        if (known := repeated(entry, [memory.known for memory in memories])) is not None:
            raise MemoryRefused("memory_repeated", id=known.id, text=known.text)

    async def edit(
        self, session: Session, memory_id: int, entry: Entry, reviewed: bool | None
    ) -> Memory:
        """Changes a memory as a person does; ``None`` leaves the review to the change.

        Raises:
            InvalidChange: The session has no such memory.
            MemoryRefused: The new text repeats another memory.
        """

        def check(others: list[Memory], _: list[Vector]) -> None:
            key = key_of(entry.text)
            same = (m.known for m in others if key_of(m.text) == key)
            known = next((one for one in same if of_one_person(entry, one)), None)
            if known is not None:
                raise MemoryRefused("memory_repeated", id=known.id, text=known.text)

        memory = await self.store.edit(session.session_id, memory_id, entry, reviewed, check)
        self.vectors.refresh_later(session.session_id)
        return memory

    # Finding

    async def find(
        self, session_id: str, query: str, limit: int, offset: int = 0
    ) -> tuple[list[Memory], int]:
        """Memories that fit a query, best first, and how many; without one, newest first."""
        if not query.strip():
            return await self.store.newest(session_id, limit, offset)
        found = searched(query, await self.store.all(session_id))
        return found[offset : offset + limit], len(found)

    async def look_up(self, session_id: str, query: str, limit: int) -> list[Memory]:
        """What a model's search finds: by words, and by meaning if there are embeddings."""
        if not query.strip():
            return (await self.store.newest(session_id, limit))[0]
        memories = await self.store.all(session_id)
        near = await self.vectors.cosines(session_id, query, memories)
        best = [one.memory for one in ranked(memories, keyword_scores(query, memories), near)]
        return (best or searched(query, memories))[:limit]

    async def named(self, session_id: str, text: str) -> list[Memory]:
        """The memories that say what a text says."""
        memories = await self.store.all(session_id)
        return [m for m in memories if says_the_same(text, m.text) or says_the_same(m.text, text)]

    # Recall

    async def recall(
        self,
        session: Session,
        question: str,
        visible: Sequence[str],
        fits: Callable[[str], bool],
    ) -> Recall | None:
        """The memories that one request is sent with, or None.

        Args:
            session: The session.
            question: What the user says now.
            visible: The texts that the request holds already.
            fits: Whether a text is small enough for what is left of the budget.
        """
        top_k = self._settings.memory_recall_top_k
        if not question.strip() or top_k == 0:
            return None
        try:
            memories = await self.store.all(session.session_id)
            near = await self.vectors.cosines(session.session_id, question, memories)
        except StorageUnavailable:
            return None
        # Many memories and a long window take their time: not on the event loop.
        fresh = await asyncio.to_thread(_fresh, question, memories, near, visible, 2 * top_k)
        chosen, text = selected(fresh, fits, top_k)
        return Recall(chosen, text) if chosen else None

    def note_recalled(self, session_id: str, memories: Sequence[Memory]) -> None:
        """Notes in the background that memories were sent."""
        work = self._note(session_id, [memory.id for memory in memories])
        task = asyncio.get_running_loop().create_task(work)
        self._notes.add(task)
        task.add_done_callback(self._notes.discard)

    async def _note(self, session_id: str, ids: list[int]) -> None:
        try:
            await self.store.note_recalled(session_id, ids, int(self._clock()))
        except StorageUnavailable:
            # The database logs it; the time is only shown to people.
            return


def _fresh(
    question: str,
    memories: Sequence[Memory],
    near: dict[int, float],
    visible: Sequence[str],
    enough: int,
) -> list[Scored]:
    candidates = ranked(memories, keyword_scores(question, memories), near)[:_CANDIDATES]
    return unseen(candidates, visible, enough)


def _refuse_same_meaning(
    entry: Entry, memories: Sequence[Memory], vectors: Sequence[Vector], embedded: Embedded
) -> None:
    near = cosines(vectors, embedded)
    for memory in memories:
        close = near.get(memory.id, 0.0) >= NEAR_COSINE
        same = same_facts(entry.text, memory.text) and of_one_person(entry, memory.known)
        if close and same:
            raise MemoryRefused("memory_repeated", id=memory.id, text=memory.text)
