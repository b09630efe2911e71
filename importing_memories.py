"""The memories of an import: those that a session does not have yet.

They pass the same rules as any other memory, but for near repeats: what a person
exported together stays together. Nothing that is there is changed or removed.
"""

from collections.abc import Sequence

import aiosqlite

from .errors import InvalidChange, MemoryRefused
from .memory import Entry, entry_of, key_of
from .memory_store import add_imported, known_of
from .texts import both
from .transfer import MemoryEntry, SessionEntry

NewMemories = list[tuple[Entry, MemoryEntry]]


async def new_memories(
    db: aiosqlite.Connection, number: int, entry: SessionEntry, limit: int
) -> tuple[int, NewMemories]:
    """How many memories a session has, and those that the file adds.

    Args:
        db: The connection, inside a transaction.
        number: Place of the session in the file.
        entry: The session as the file has it.
        limit: Memories a session may hold.

    Raises:
        InvalidChange: A memory is empty, or there would be too many.
    """
    if not entry.memories:
        return 0, []
    known = await known_of(db, entry.session_id)
    persons: dict[str, set[str]] = {}
    for one in known:
        persons.setdefault(key_of(one.text), set()).add(key_of(one.about))
    found = []
    for position, memory in enumerate(entry.memories):
        well_formed = _well_formed(memory, f"sessions.{number}.memories.{position}.text")
        there = persons.setdefault(key_of(well_formed.text), set())
        person = key_of(well_formed.about)
        # A text without a person is told of everybody.
        if not there or (person and not there & {person, ""}):
            there.add(person)
            found.append((well_formed, memory))
    count = len(known) + len(found)
    if found and count > limit:
        message = (
            f"会有 {count} 条记忆，最多 {limit} 条"
            f" / the session would hold {count} memories, at most {limit} are allowed"
        )
        raise InvalidChange(f"sessions.{number}.memories", message)
    return len(known), found


def _well_formed(memory: MemoryEntry, field: str) -> Entry:
    try:
        return entry_of(memory.text, memory.tags, memory.about)
    except MemoryRefused as refusal:
        raise InvalidChange(field, both(refusal.reason_key, **refusal.params)) from refusal


async def add_new_memories(
    db: aiosqlite.Connection, session_id: str, memories: Sequence[tuple[Entry, MemoryEntry]]
) -> None:
    """Adds what ``new_memories`` found."""
    names = ("source", "reviewed", "created_at", "recalled_at")
    rows = [(entry, {n: getattr(memory, n) for n in names}) for entry, memory in memories]
    await add_imported(db, session_id, rows)
