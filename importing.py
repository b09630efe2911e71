"""Puts the sessions of an export into the database, all or none.

The same plan serves the dry run and the import, so that what is shown is what is
done unless somebody else writes in between; the plan is then made anew inside the
one transaction that carries it out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import aiosqlite

from .importing_memories import NewMemories, add_new_memories, new_memories
from .options import OPTIONS
from .session_rows import EDITABLE, SESSION_COLUMNS, Session, kind_of, session_of_row
from .storage import Storage
from .transfer import SessionEntry, VersionEntry
from .watermark import prefix_hash

_QUERY_SIZE = 500


@dataclass(frozen=True, slots=True)
class _Step:
    """What one session of the file changes; ``before`` is the default of a new one."""

    entry: SessionEntry
    current: Session | None
    before: dict[str, Any]
    after: dict[str, Any]
    memories_before: int
    memories: NewMemories

    @property
    def differing(self) -> list[str]:
        """What changes; of a new session its texts and sizes, and what is no default."""
        always = () if self.current else EDITABLE[: -len(OPTIONS)]
        return [n for n in EDITABLE if n in always or self.before[n] != self.after[n]]

    @property
    def new_summary(self) -> bool:
        """Whether the summary is not the newest of the versions that come along."""
        if self.current is not None:
            return "summary" in self.differing
        last = next((v for v in reversed(self.entry.versions) if not v.conflicting), None)
        return self.after["summary"] != (last.text if last else "")

    def changes(self) -> list[dict[str, Any]]:
        before = self.before if self.current else {}
        shown = [(name, before.get(name), self.after[name]) for name in self.differing]
        if self.current is None and self.entry.versions:
            shown.append(("versions", None, len(self.entry.versions)))
        if self.memories:
            count = self.memories_before if self.current else None
            shown.append(("memories", count, self.memories_before + len(self.memories)))
        name = self.current.display_name if self.current else self.entry.display_name
        return [
            {
                "session_id": self.entry.session_id,
                "display_name": name,
                "field": field,
                "before": before,
                "after": after,
            }
            for field, before, after in shown
        ]


async def import_sessions(
    storage: Storage,
    entries: Sequence[SessionEntry],
    *,
    apply: bool,
    now: int,
    max_memories: int,
) -> list[dict[str, Any]]:
    """Compares a file with the database, and takes it over if asked to.

    Args:
        storage: The database.
        entries: The file's sessions, checked.
        apply: Whether to write.
        now: Unix seconds.
        max_memories: Long-term memories a session may hold.

    Returns:
        The changes by session and field, in the file's order. ``before`` is None
        where the session is new.
    """
    if not apply:
        async with storage.database.reading() as db:
            steps = await _plan(db, storage, entries, max_memories)
    else:
        async with storage.database.writing() as db:
            steps = await _plan(db, storage, entries, max_memories)
            await _carry_out(db, steps, now)
    return [change for step in steps for change in step.changes()]


async def _plan(
    db: aiosqlite.Connection,
    storage: Storage,
    entries: Sequence[SessionEntry],
    max_memories: int,
) -> list[_Step]:
    defaults = dict.fromkeys(EDITABLE, "") | await storage.default_values(db)
    known = await _known(db, [entry.session_id for entry in entries])
    steps = []
    for number, entry in enumerate(entries):
        current = known.get(entry.session_id)
        before = {n: getattr(current, n) for n in EDITABLE} if current else defaults
        memories = await new_memories(db, number, entry, max_memories)
        steps.append(_Step(entry, current, before, before | entry.values, *memories))
    return steps


async def _known(db: aiosqlite.Connection, ids: list[str]) -> dict[str, Session]:
    found = {}
    for start in range(0, len(ids), _QUERY_SIZE):
        part = ids[start : start + _QUERY_SIZE]
        rows = await db.execute_fetchall(
            f"SELECT {SESSION_COLUMNS} FROM sessions"
            f" WHERE session_id IN ({', '.join('?' * len(part))})",
            part,
        )
        found |= {row[0]: session_of_row(row) for row in rows}
    return found


async def _carry_out(db: aiosqlite.Connection, steps: Sequence[_Step], now: int) -> None:
    """A few statements for all sessions: a chat's own write may be waiting."""
    new = [step for step in steps if step.current is None]
    changed = [step for step in steps if step.current is not None and step.differing]
    await db.executemany(
        "INSERT INTO sessions (session_id, display_name, platform, kind, last_seen_at, updated_at,"
        f" {', '.join(EDITABLE)}) VALUES (?, ?, ?, ?, ?, ?{', ?' * len(EDITABLE)})",
        [(*_identity(step.entry), now, *map(step.after.get, EDITABLE)) for step in new],
    )
    await db.executemany(
        f"UPDATE sessions SET {', '.join(f'{name} = ?' for name in EDITABLE)},"
        " revision = revision + 1, updated_at = ? WHERE session_id = ?",
        [(*map(s.after.get, EDITABLE), now, s.entry.session_id) for s in changed],
    )
    columns = ("session_id", *VersionEntry.model_fields)
    await db.executemany(
        f"INSERT INTO summary_versions ({', '.join(columns)})"
        f" VALUES ({', '.join('?' * len(columns))})",
        [row for step in (*new, *changed) for row in _version_rows(step, now)],
    )
    for step in steps:
        await add_new_memories(db, step.entry.session_id, step.memories)


def _identity(entry: SessionEntry) -> tuple[Any, ...]:
    kind = kind_of(entry.session_id)
    platform = entry.platform or (entry.session_id.partition(":")[0] if kind != "other" else "")
    return entry.session_id, entry.display_name, platform, kind, entry.last_seen_at


def _version_rows(step: _Step, now: int) -> list[tuple[Any, ...]]:
    versions = list(step.entry.versions) if step.current is None else []
    if step.new_summary:
        versions.append(_imported(step, now))
    names = VersionEntry.model_fields
    return [(step.entry.session_id, *(getattr(v, n) for n in names)) for v in versions]


def _imported(step: _Step, now: int) -> VersionEntry:
    """The imported summary as a version; it covers what the file says, or nothing.

    The coverage is checked against the stored conversation like any other.
    """
    source = next(
        (v for v in reversed(step.entry.versions) if v.prefix_hash and not v.conflicting), None
    )
    return VersionEntry(
        created_at=now,
        source="import",
        model=source.model if source else "",
        conversation_id=source.conversation_id if source else None,
        covered=source.covered if source else 0,
        prefix_hash=source.prefix_hash if source else prefix_hash([]),
        text=step.after["summary"],
    )
