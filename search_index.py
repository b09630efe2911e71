"""The full-text index of archived messages: which message holds which term.

Invariants:

* The index changes only in the transaction that changes the archive; an entry is
  removed with the very terms it was added with.
* It stores no text and no positions: a term is a token that names the bucket of its
  session, so that a search within one session reads a fraction of a large archive.
* A session's messages are found only together with the session's own token.
* The terms of another version, or of an archive older than the index, are indexed
  anew in bounded steps; until then a row is either pending or in the index.
"""

import asyncio
import contextlib
import hashlib
import logging
import sqlite3
import unicodedata
import zlib
from collections.abc import Iterable, Sequence
from importlib.metadata import version

import aiosqlite

from .database import Database
from .errors import StorageUnavailable
from .search_terms import TERMS_VERSION, index_terms

logger = logging.getLogger("astrbot")

# What the index needs of a row of the archive: id, session, sender, text.
IndexedRow = tuple[int, str, str, str]

# Rows a step of indexing anew; other users of the database wait for one step.
STEP = 200
# Pages that one step of compacting merges; some 30 milliseconds.
_MERGED_PAGES = 100

# More buckets make a search within a session faster and one over all slower.
_BUCKETS = 32
# Private-use characters, which no term of a text contains.
_FIRST_BUCKET, _SESSION_MARK = 0xE100, "\ue000"

# Terms are cut by this code, the stemmer and Unicode; each of them may change.
_VERSION = f"{TERMS_VERSION}/{version('snowballstemmer')}/{unicodedata.unidata_version}"


async def add(db: aiosqlite.Connection, rows: Sequence[IndexedRow]) -> None:
    """Indexes new rows of the archive, within the caller's transaction.

    Args:
        db: A connection with an open transaction.
        rows: Rows that are not in the index yet.
    """
    entries = await asyncio.to_thread(_entries, rows)
    await db.executemany("INSERT INTO message_index (rowid, terms) VALUES (?, ?)", entries)


async def remove(db: aiosqlite.Connection, rows: Sequence[IndexedRow]) -> None:
    """Takes rows out of the index, within the caller's transaction.

    Args:
        db: A connection with an open transaction.
        rows: Rows as they were when they were added.
    """
    pending = await _pending(db)
    entries = await asyncio.to_thread(_entries, [row for row in rows if row[0] not in pending])
    await db.executemany(
        "INSERT INTO message_index (message_index, rowid, terms) VALUES ('delete', ?, ?)", entries
    )


async def compact(database: Database) -> None:
    """Merges the index until nothing of removed rows is left in it; in bounded steps."""
    more = True
    while more:
        async with database.writing() as db:
            before = db.total_changes
            await db.execute(
                "INSERT INTO message_index (message_index, rank) VALUES ('merge', ?)",
                (-_MERGED_PAGES,),
            )
            # FTS5 counts its own statement; another change means that it merged something.
            more = db.total_changes - before > 1


async def index_pending(database: Database) -> int:
    """Indexes what the index lacks, in bounded steps.

    Returns:
        How many rows were indexed.

    Raises:
        StorageUnavailable: The database cannot be written; steps done stay.
    """
    await prepare(database)
    indexed = 0
    while step := await _index_step(database):
        indexed += step
    return indexed


async def start(database: Database) -> asyncio.Task[None]:
    """Makes the index ready for use; what it lacks is indexed in the background.

    Returns:
        The task in the background, to be cancelled at the end. It never fails.
    """
    with contextlib.suppress(StorageUnavailable):
        await prepare(database)
    return asyncio.create_task(_complete(database))


async def _complete(database: Database) -> None:
    try:
        if indexed := await index_pending(database):
            logger.info("[context_manager] search: %d archived messages indexed anew", indexed)
    except StorageUnavailable:
        # Logged by the database; the next start goes on from there.
        pass
    except Exception:
        logger.exception("[context_manager] search: not all archived messages are indexed")


async def prepare(database: Database) -> None:
    """Empties an index of another version; all rows of the archive are pending then.

    To be called before anything else changes the archive.
    """
    async with database.writing() as db:
        rows = await db.execute_fetchall("SELECT version FROM message_index_state")
        if next((row[0] for row in rows), "") == _VERSION:
            return
        await db.execute("INSERT INTO message_index (message_index) VALUES ('delete-all')")
        await db.execute("DELETE FROM message_index_state")
        await db.execute(
            "INSERT INTO message_index_state (version, done, until)"
            " SELECT ?, 0, coalesce(max(id), 0) FROM archived_messages",
            (_VERSION,),
        )


async def _index_step(database: Database) -> int:
    async with database.writing() as db:
        pending = await _pending(db)
        rows = await db.execute_fetchall(
            "SELECT id, session_id, sender, text FROM archived_messages"
            " WHERE id >= ? AND id < ? ORDER BY id LIMIT ?",
            (pending.start, pending.stop, STEP),
        )
        rows = list(rows)
        await add(db, rows)
        done = rows[-1][0] if rows else pending.stop - 1
        await db.execute("UPDATE message_index_state SET done = ?", (done,))
    return len(rows)


async def _pending(db: aiosqlite.Connection) -> range:
    """The ids of the rows that are not in the index yet."""
    rows = await db.execute_fetchall("SELECT done + 1, until + 1 FROM message_index_state")
    return next((range(*row) for row in rows), range(0))


def _entries(rows: Iterable[IndexedRow]) -> list[tuple[int, str]]:
    return [
        (row_id, _document(session_id, sender, text)) for row_id, session_id, sender, text in rows
    ]


def _document(session_id: str, sender: str, text: str) -> str:
    bucket = _bucket(session_id)
    terms = index_terms(f"{sender}\n{text}")
    return " ".join([_session_token(session_id), *(bucket + term for term in terms)])


def _bucket(session_id: str) -> str:
    return chr(_FIRST_BUCKET + zlib.crc32(session_id.encode("utf-8", "replace")) % _BUCKETS)


def _session_token(session_id: str) -> str:
    digest = hashlib.blake2b(session_id.encode("utf-8", "replace"), digest_size=8)
    return _SESSION_MARK + digest.hexdigest()


# Reading; on a connection of the search's own, outside the event loop.


def session_size(db: sqlite3.Connection, session_id: str) -> int:
    """How many messages of a session are indexed."""
    return _count(db, _quoted(_session_token(session_id)), -1)


def count_holders(db: sqlite3.Connection, term: str, session_id: str | None, limit: int) -> int:
    """How many messages hold a term; counts to ``limit`` at most.

    Args:
        db: The connection.
        term: The term.
        session_id: The session; None for all of them.
        limit: Where to stop.
    """
    found = 0
    for expression in _expressions(term, session_id):
        found += _count(db, expression, limit - found)
        if found >= limit:
            break
    return found


def holders(db: sqlite3.Connection, term: str, session_id: str | None, limit: int) -> list[int]:
    """The ids of the messages that hold a term.

    Args:
        db: The connection.
        term: The term.
        session_id: The session; None for all of them.
        limit: If there are more, the newest of each bucket, so many in all.
    """
    found = [_ids(db, expression, limit) for expression in _expressions(term, session_id)]
    if sum(map(len, found)) > limit:
        found = [ids[: limit // len(found)] for ids in found]
    return [row_id for ids in found for row_id in ids]


def _expressions(term: str, session_id: str | None) -> list[str]:
    if session_id is not None:
        token = _quoted(_bucket(session_id) + term)
        return [f"{_quoted(_session_token(session_id))} AND {token}"]
    return [_quoted(chr(_FIRST_BUCKET + bucket) + term) for bucket in range(_BUCKETS)]


def _quoted(token: str) -> str:
    return '"' + token.replace('"', '""') + '"'


def _count(db: sqlite3.Connection, expression: str, limit: int) -> int:
    statement = "SELECT count(*) FROM (SELECT 1 FROM message_index(?) LIMIT ?)"
    return db.execute(statement, (expression, limit)).fetchone()[0]


def _ids(db: sqlite3.Connection, expression: str, limit: int) -> list[int]:
    statement = "SELECT rowid FROM message_index(?) ORDER BY rowid DESC LIMIT ?"
    return [row[0] for row in db.execute(statement, (expression, limit))]
