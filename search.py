"""Search of the archive: candidates from the index, ranked again with their neighbours.

Invariants:

* A search within a session reads the text of no other session's messages; the scope
  is an argument of the caller and never comes from the question.
* It runs on a connection of its own, in a thread: no request waits for it.
* A message that was brought back as one of a new conversation is found once.
* A message that contains a short question literally stands before all that do not.
* Its cost is bounded, whatever is asked and however large the archive is.
"""

import heapq
import json
import sqlite3
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from .archive_reader import Entry, Scope
from .database import Database
from .search_index import count_holders, holders, session_size
from .search_question import Question, read_question
from .search_ranking import (
    NEIGHBOUR_WEIGHTS,
    Passage,
    Statistics,
    TermCounts,
    scores,
)
from .search_snippet import snippet
from .search_terms import is_cjk

# Candidates that are ranked again with their neighbours.
RANKED = 400
# Messages with all terms that are compared with the question literally, the newest.
_COMPARED = 2000
# The newest messages in which a piece of a word is looked for.
_SCANNED, _SCAN_HITS = 20_000, 1000
# A term in more messages than this says too little to be read, and what is read of all
# terms together; sessions with fewer messages are read as a whole.
_COMMON, _READ = 20_000, 50_000
# Candidates of a day that the question names.
_OF_A_DAY = 400
_SAME_DAY = 4.0


@dataclass(frozen=True, slots=True)
class Hit(Entry):
    """A message that was found.

    Attributes:
        title: Of its conversation.
        session_name: Group name or nickname as last seen.
        snippet: A piece of ``text`` in which the hits are marked.
    """

    title: str
    session_name: str
    snippet: str


@dataclass(frozen=True, slots=True)
class Found:
    """One page of hits, best first, and how many there are in all."""

    items: list[Hit]
    total: int


async def search(
    database: Database, text: str, scope: Scope, *, limit: int = 20, offset: int = 0
) -> Found:
    """Searches the archive.

    Args:
        database: The plugin's database.
        text: What is looked for; anything at all.
        scope: Where.
        limit: Hits a page.
        offset: Hits before the page.

    Raises:
        StorageUnavailable: The database cannot be read, or the search took too long.
    """
    question = read_question(text, datetime.now())
    return await database.searching(lambda db: _search(db, question, scope, limit, offset))


def _search(
    db: sqlite3.Connection, question: Question, scope: Scope, limit: int, offset: int
) -> Found:
    if not question.text:
        return Found([], 0)
    index = _Lookup(db, question, scope)
    ordered = _ordered(db, index, question, scope)
    page = ordered[offset : offset + limit]
    return Found(_hits(db, page, question, scope), len(ordered))


class _Lookup:
    """What the index and the scan say about a question.

    Attributes:
        holders: The messages of the scope's sessions that hold each term that was read.
        statistics: Of the collection that is searched.
        points: What the terms of each message weigh together: the first stage.
        likely: All messages that may contain a short question literally.
    """

    def __init__(self, db: sqlite3.Connection, question: Question, scope: Scope) -> None:
        total = _total(db, scope)
        self.holders = _holders(db, question.terms, scope.session_id, total)
        frequencies = {term: len(ids) for term, ids in self.holders.items()}
        self.statistics = Statistics(total, frequencies, 1.0)
        scanned, self.likely = _likely(db, self.holders, question, scope)
        found = Counter(row_id for ids in self.holders.values() for row_id in ids)
        weights = self.statistics.weights(self.holders)
        least = question.least_terms(len(self.holders))
        enough = {row_id for row_id, count in found.items() if count >= least}
        # Of "猫咪生病", "猫咪" alone tells something; pairs across two words are in no message.
        enough.update(*(ids for term, ids in self.holders.items() if len(term) > 1))
        self.points = dict.fromkeys(scanned, 0.0)
        for term, ids in self.holders.items():
            for row_id in ids & enough:
                self.points[row_id] = self.points.get(row_id, 0.0) + weights[term]

    def counts(self, row_id: int, length: float) -> TermCounts:
        """The question's terms in a message."""
        return TermCounts({t: 1 for t, ids in self.holders.items() if row_id in ids}, length)


def _total(db: sqlite3.Connection, scope: Scope) -> int:
    if scope.session_id is not None:
        return session_size(db, scope.session_id)
    # Rows that were deleted count too; it is only the measure of what is common.
    return db.execute("SELECT coalesce(max(id), 0) FROM archived_messages").fetchone()[0]


def _holders(
    db: sqlite3.Connection, terms: Sequence[str], session_id: str | None, total: int
) -> dict[str, frozenset[int]]:
    """The messages that hold each term; the most common terms are left out where it matters."""
    counts = dict.fromkeys(terms, 0)
    if session_id is None or total > _COMMON:
        counts = {term: count_holders(db, term, session_id, _COMMON) for term in terms}
    found: dict[str, frozenset[int]] = {}
    left = _READ
    for term in sorted(terms, key=counts.__getitem__):
        # The rarest is read whatever it costs: there is nothing else to go by.
        if found and (counts[term] >= _COMMON or counts[term] > left):
            break
        found[term] = frozenset(holders(db, term, session_id, _COMMON))
        left -= counts[term]
    return found


def _likely(
    db: sqlite3.Connection,
    holders: Mapping[str, frozenset[int]],
    question: Question,
    scope: Scope,
) -> tuple[set[int], set[int]]:
    """The messages that a scan found, and all that may contain a short question.

    A message that contains it holds all its Chinese, Japanese and Korean terms. Of other
    scripts the index knows only whole words, and no punctuation: then a scan has to do.
    """
    if not question.needle:
        return set(), set()
    pieces = [ids for term, ids in holders.items() if is_cjk(term)]
    likely = set(frozenset.intersection(*pieces)) if pieces else set()
    if is_cjk(question.needle) or (pieces and len(likely) <= _COMPARED):
        return set(), likely
    scanned = _scanned(db, question, scope)
    return scanned, likely | scanned


def _scanned(db: sqlite3.Connection, question: Question, scope: Scope) -> set[int]:
    """The newest messages that contain the question as a piece of their text."""
    pattern = "".join("\\" + c if c in "\\%_" else c for c in question.text)
    condition, values = Scope(scope.session_id).condition()
    rows = db.execute(
        "SELECT id FROM (SELECT id, text FROM archived_messages"
        f" WHERE {condition} ORDER BY id DESC LIMIT ?) WHERE text LIKE ? ESCAPE '\\' LIMIT ?",
        [*values, _SCANNED, f"%{pattern}%", _SCAN_HITS],
    )
    return {row[0] for row in rows}


def _ordered(db: sqlite3.Connection, index: _Lookup, question: Question, scope: Scope) -> list[int]:
    """The ids of all hits, best first."""
    points = dict(index.points)
    of_days = _ids_of_days(db, question, scope)
    for row_id in of_days:
        points[row_id] = points.get(row_id, 0.0) * _SAME_DAY
    if scope.is_filtered:
        kept = _in_scope(db, points, scope)
        points = {row_id: value for row_id, value in points.items() if row_id in kept}
    for row_id in _copies(db, points):
        del points[row_id]
    literal = _containing(db, index, points, question)
    first = heapq.nlargest(
        RANKED, points, key=lambda row_id: (row_id in literal, points[row_id], row_id)
    )
    ranking = _second_stage(db, index, first, of_days, question)
    rest = points.keys() - ranking.keys()
    return [
        *sorted(ranking, key=lambda row_id: (row_id in literal, ranking[row_id], row_id))[::-1],
        *sorted(rest, key=lambda row_id: (row_id in literal, points[row_id], row_id))[::-1],
    ]


def _ids_of_days(db: sqlite3.Connection, question: Question, scope: Scope) -> set[int]:
    """The newest messages of the days that a question names."""
    found: set[int] = set()
    if not question.days or scope.session_id is None:
        return found
    rows = db.execute(
        "SELECT id, time FROM archived_messages WHERE session_id = ? ORDER BY id DESC LIMIT ?",
        (scope.session_id, _SCANNED),
    )
    for row_id, at in rows:
        if len(found) < _OF_A_DAY and _on_day(question, at):
            found.add(row_id)
    return found


def _on_day(question: Question, at: int) -> bool:
    return any(day.holds(datetime.fromtimestamp(at)) for day in question.days)


def _in_scope(db: sqlite3.Connection, ids: Iterable[int], scope: Scope) -> set[int]:
    condition, values = scope.condition()
    rows = db.execute(
        "SELECT id FROM archived_messages WHERE id IN (SELECT value FROM json_each(?))"
        f" AND {condition}",
        [json.dumps(list(ids)), *values],
    )
    return {row[0] for row in rows}


def _copies(db: sqlite3.Connection, ids: Collection[int]) -> list[int]:
    """All but one of the rows that are copies of the same message.

    The one is in a conversation of the host if any of them is, and the newest of these.
    """
    rows = db.execute(
        "SELECT message_id, original_id FROM archived_copies"
        " WHERE message_id IN (SELECT value FROM json_each(?))",
        [json.dumps(list(ids))],
    )
    same: dict[int, list[int]] = {}
    for row_id, original in rows:
        same.setdefault(original, [original] if original in ids else []).append(row_id)
    if not same:
        return []
    held = db.execute(
        "SELECT m.id FROM archived_messages m JOIN archived_conversations c USING (conversation_id)"
        " WHERE m.in_host AND c.in_host AND m.id IN (SELECT value FROM json_each(?))",
        [json.dumps([row_id for group in same.values() for row_id in group])],
    )
    in_host = {row[0] for row in held}
    best = {max(group, key=lambda row_id: (row_id in in_host, row_id)) for group in same.values()}
    return [row_id for group in same.values() for row_id in group if row_id not in best]


def _containing(
    db: sqlite3.Connection, index: _Lookup, points: Mapping[int, float], question: Question
) -> set[int]:
    """The candidates that contain a short question literally."""
    if not question.needle:
        return set()
    likely = heapq.nlargest(_COMPARED, index.likely & points.keys())
    rows = db.execute(
        "SELECT id, text FROM archived_messages WHERE id IN (SELECT value FROM json_each(?))",
        (json.dumps(likely),),
    )
    return {row_id for row_id, text in rows if question.is_in(text)}


def _second_stage(
    db: sqlite3.Connection,
    index: _Lookup,
    ids: Sequence[int],
    of_days: set[int],
    question: Question,
) -> dict[int, float]:
    """The scores of the first candidates together with their neighbours."""
    rows = db.execute(
        "SELECT m.id, m.sender, m.time, length(m.text), n.id, n.seq - m.seq"
        " FROM archived_messages m LEFT JOIN archived_messages n"
        " ON n.conversation_id = m.conversation_id AND n.seq BETWEEN m.seq - 2 AND m.seq + 2"
        " AND n.seq != m.seq WHERE m.id IN (SELECT value FROM json_each(?))",
        (json.dumps(list(ids)),),
    ).fetchall()
    told = {row[0]: row[1:4] for row in rows}
    average = sum(length for _, _, length in told.values()) / max(1, len(told))
    around: dict[int, dict[int, TermCounts]] = {row_id: {} for row_id in told}
    for row in rows:
        if row[4] is not None and row[5] in NEIGHBOUR_WEIGHTS:
            around[row[0]][row[5]] = index.counts(row[4], average)
    passages = [
        Passage(
            index.counts(row_id, length),
            around[row_id],
            sender,
            row_id in of_days or _on_day(question, at),
        )
        for row_id, (sender, at, length) in told.items()
    ]
    statistics = Statistics(index.statistics.total, index.statistics.frequencies, average)
    ranked = scores(question.text, list(index.holders), passages, statistics)
    return dict(zip(told, ranked, strict=True))


def _hits(
    db: sqlite3.Connection, ids: Sequence[int], question: Question, scope: Scope
) -> list[Hit]:
    condition, values = scope.condition("m.")
    rows = db.execute(
        "SELECT m.id, m.session_id, m.conversation_id, m.seq, m.role, m.sender, m.time, m.text,"
        " m.in_host AND coalesce(c.in_host, 1), coalesce(c.title, ''),"
        " coalesce(s.display_name, '') FROM archived_messages m"
        " LEFT JOIN archived_conversations c ON c.conversation_id = m.conversation_id"
        " LEFT JOIN sessions s ON s.session_id = m.session_id"
        f" WHERE m.id IN (SELECT value FROM json_each(?)) AND {condition}",
        [json.dumps(list(ids)), *values],
    )
    found = {row[0]: row for row in rows}
    return [
        Hit(*row[:8], bool(row[8]), *row[9:], snippet(row[7], question.terms, question.text))
        for row in map(found.get, ids)
        if row is not None
    ]
