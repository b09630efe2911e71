"""The database's schema, as numbered steps.

Step n takes a database from ``user_version`` n-1 to n, in one transaction. A
released step is never changed; a new schema is a new step. Tables and columns are
only ever added, so that an older plugin can still use a newer database.
"""

import sqlite3
from collections.abc import Iterator, Sequence

import aiosqlite

MIGRATIONS = [
    # 1: the first schema. `windows` is keyed by conversation, because a session
    # that changes its conversation must not move the other one's window.
    """
    CREATE TABLE sessions (
        session_id TEXT PRIMARY KEY,
        display_name TEXT NOT NULL DEFAULT '',
        platform TEXT NOT NULL DEFAULT '',
        fixed_memory TEXT NOT NULL DEFAULT '',
        summary TEXT NOT NULL DEFAULT '',
        compress_prompt TEXT NOT NULL DEFAULT '',
        recent_context_token_budget INTEGER NOT NULL DEFAULT 100000,
        summary_target_tokens INTEGER NOT NULL DEFAULT 1500,
        last_seen_at INTEGER NOT NULL DEFAULT 0,
        updated_at INTEGER NOT NULL DEFAULT 0,
        revision INTEGER NOT NULL DEFAULT 1,
        kind TEXT NOT NULL DEFAULT 'other'
    );
    CREATE INDEX sessions_by_activity ON sessions (last_seen_at DESC, session_id);
    CREATE TABLE defaults (name TEXT PRIMARY KEY, value INTEGER NOT NULL);
    CREATE TABLE summary_versions (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        session_id TEXT NOT NULL REFERENCES sessions (session_id),
        created_at INTEGER NOT NULL,
        source TEXT NOT NULL,
        model TEXT NOT NULL DEFAULT '',
        conversation_id TEXT,
        covered INTEGER NOT NULL DEFAULT 0,
        prefix_hash TEXT NOT NULL DEFAULT '',
        tokens INTEGER NOT NULL DEFAULT 0,
        text TEXT NOT NULL,
        conflicting INTEGER NOT NULL DEFAULT 0
    );
    CREATE INDEX versions_by_session ON summary_versions (session_id, id);
    CREATE TABLE windows (
        conversation_id TEXT PRIMARY KEY,
        session_id TEXT NOT NULL,
        message_index INTEGER NOT NULL,
        content_hash TEXT NOT NULL,
        settings_key TEXT NOT NULL
    );
    """,
    # 2: what the last requests of each session sent and cost. Unreported usage is NULL.
    """
    CREATE TABLE requests (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        session_id TEXT NOT NULL,
        time INTEGER NOT NULL,
        model TEXT NOT NULL,
        sections TEXT NOT NULL,
        estimated INTEGER NOT NULL,
        prompt_tokens INTEGER,
        cached_tokens INTEGER,
        output_tokens INTEGER,
        first_turn INTEGER NOT NULL,
        left_out_turns INTEGER NOT NULL,
        milliseconds INTEGER NOT NULL
    );
    CREATE INDEX requests_by_session ON requests (session_id, id);
    CREATE INDEX sessions_by_platform ON sessions (platform);
    """,
    # 3: the options of a session. Sessions that are there take the documented defaults.
    """
    ALTER TABLE sessions ADD COLUMN window_keep_ratio REAL NOT NULL DEFAULT 0.7;
    ALTER TABLE sessions ADD COLUMN keep_first_turns INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE sessions ADD COLUMN tail_tokens INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE sessions ADD COLUMN auto_compress INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE sessions ADD COLUMN auto_compress_min_messages INTEGER NOT NULL DEFAULT 8;
    ALTER TABLE sessions ADD COLUMN auto_compress_threshold REAL NOT NULL DEFAULT 0.85;
    ALTER TABLE sessions ADD COLUMN auto_compress_notice INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE sessions ADD COLUMN topic_idle_messages INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE sessions ADD COLUMN topic_idle_hours INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE sessions ADD COLUMN archive_enabled INTEGER NOT NULL DEFAULT 1;
    ALTER TABLE sessions ADD COLUMN search_tool_enabled INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE sessions ADD COLUMN memory_enabled INTEGER NOT NULL DEFAULT 0;
    """,
    # 4: the archive, one row a message. `seq` orders a conversation's messages, those
    # that the host no longer holds among them; `content` is exact but for inline media.
    """
    CREATE TABLE archived_conversations (
        conversation_id TEXT PRIMARY KEY,
        session_id TEXT NOT NULL,
        title TEXT NOT NULL DEFAULT '',
        first_at INTEGER NOT NULL DEFAULT 0,
        last_at INTEGER NOT NULL DEFAULT 0,
        in_host INTEGER NOT NULL DEFAULT 1,
        host_updated_at REAL NOT NULL DEFAULT 0,
        forgotten INTEGER NOT NULL DEFAULT 0
    );
    CREATE INDEX archived_conversations_by_session
        ON archived_conversations (session_id, last_at);
    CREATE TABLE archived_messages (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        session_id TEXT NOT NULL,
        conversation_id TEXT NOT NULL,
        seq INTEGER NOT NULL,
        role TEXT NOT NULL,
        sender TEXT NOT NULL DEFAULT '',
        time INTEGER NOT NULL,
        text TEXT NOT NULL,
        content TEXT NOT NULL,
        content_hash TEXT NOT NULL,
        in_host INTEGER NOT NULL DEFAULT 1,
        token_classes TEXT NOT NULL DEFAULT '[]'
    );
    CREATE INDEX archived_by_conversation ON archived_messages (conversation_id, seq);
    CREATE INDEX archived_by_session ON archived_messages (session_id, id);
    """,
    # 5: the journal. The parts of a conversation together are its history as the host
    # stored it, exact and compressed; a request that runs cut has one row.
    """
    CREATE TABLE journals (
        conversation_id TEXT PRIMARY KEY,
        session_id TEXT NOT NULL,
        messages INTEGER NOT NULL,
        fingerprint TEXT NOT NULL,
        used_at INTEGER NOT NULL
    );
    CREATE INDEX journals_by_session ON journals (session_id);
    CREATE TABLE journal_parts (
        conversation_id TEXT NOT NULL,
        start INTEGER NOT NULL,
        body BLOB NOT NULL,
        PRIMARY KEY (conversation_id, start)
    );
    CREATE TABLE journal_requests (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        session_id TEXT NOT NULL,
        conversation_id TEXT NOT NULL,
        time INTEGER NOT NULL,
        loaded INTEGER NOT NULL,
        loaded_fingerprint TEXT NOT NULL,
        sent INTEGER NOT NULL,
        sent_fingerprint TEXT NOT NULL
    );
    """,
    # 6: the full-text index of the archive. `message_index_state` names the version of
    # its terms, and the ids from `done` to `until` that are still to be indexed.
    """
    CREATE VIRTUAL TABLE message_index USING fts5(
        terms, content='', columnsize=0, detail=none, tokenize='ascii'
    );
    CREATE TABLE message_index_state (
        version TEXT NOT NULL,
        done INTEGER NOT NULL,
        until INTEGER NOT NULL
    );
    """,
    # 7: long-term memories. Ids are never used twice: a person may still have one on screen.
    """
    CREATE TABLE memories (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        session_id TEXT NOT NULL,
        text TEXT NOT NULL,
        text_key TEXT NOT NULL,
        tags TEXT NOT NULL DEFAULT '[]',
        about TEXT NOT NULL DEFAULT '',
        source TEXT NOT NULL,
        flagged INTEGER NOT NULL DEFAULT 0,
        reviewed INTEGER NOT NULL DEFAULT 0,
        created_at INTEGER NOT NULL,
        recalled_at INTEGER
    );
    CREATE UNIQUE INDEX memories_once ON memories (session_id, text_key);
    CREATE TABLE memory_vectors (
        memory_id INTEGER PRIMARY KEY REFERENCES memories (id),
        model TEXT NOT NULL,
        dimension INTEGER NOT NULL,
        vector BLOB NOT NULL
    );
    """,
    # 8: costs of compressions by session, source and model, and which sessions'
    # automatic ones have to wait.
    """
    CREATE TABLE compression_costs (
        session_id TEXT NOT NULL,
        source TEXT NOT NULL,
        model TEXT NOT NULL,
        jobs INTEGER NOT NULL,
        calls INTEGER NOT NULL,
        unreported INTEGER NOT NULL,
        input_tokens INTEGER NOT NULL,
        output_tokens INTEGER NOT NULL,
        PRIMARY KEY (session_id, source, model)
    );
    CREATE TABLE compression_pauses (
        session_id TEXT PRIMARY KEY,
        failures INTEGER NOT NULL,
        until INTEGER NOT NULL,
        messages INTEGER NOT NULL,
        reason TEXT NOT NULL
    );
    """,
    # 9: where media begin in a window, marks of new topics, what a request left out
    # and shortened, and sums by day, which outlive the single records.
    """
    ALTER TABLE windows ADD COLUMN media_index INTEGER NOT NULL DEFAULT 0;
    CREATE TABLE topics (
        conversation_id TEXT PRIMARY KEY,
        session_id TEXT NOT NULL,
        message_index INTEGER NOT NULL,
        content_hash TEXT NOT NULL,
        source TEXT NOT NULL,
        created_at INTEGER NOT NULL
    );
    ALTER TABLE requests ADD COLUMN budget INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE requests ADD COLUMN total_turns INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE requests ADD COLUMN left_out_messages INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE requests ADD COLUMN lightened INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE requests ADD COLUMN reason TEXT NOT NULL DEFAULT '';
    CREATE TABLE usage_days (
        session_id TEXT NOT NULL,
        day TEXT NOT NULL,
        requests INTEGER NOT NULL,
        reported INTEGER NOT NULL,
        estimated INTEGER NOT NULL,
        prompt_tokens INTEGER NOT NULL,
        cached_tokens INTEGER NOT NULL,
        output_tokens INTEGER NOT NULL,
        milliseconds INTEGER NOT NULL,
        PRIMARY KEY (session_id, day)
    );
    """,
    # 10: how each model counts tokens, limits that were learned from failures, and the
    # last prompt of each conversation whose size was reported.
    """
    CREATE TABLE model_calibrations (
        provider_id TEXT NOT NULL,
        model TEXT NOT NULL,
        basis TEXT NOT NULL,
        state TEXT NOT NULL,
        limit_tokens INTEGER,
        limit_learned_at INTEGER,
        updated_at INTEGER NOT NULL,
        PRIMARY KEY (provider_id, model, basis)
    );
    CREATE TABLE reported_prompts (
        conversation_id TEXT PRIMARY KEY,
        provider_id TEXT NOT NULL,
        model TEXT NOT NULL,
        basis TEXT NOT NULL,
        counts TEXT NOT NULL,
        reported INTEGER NOT NULL
    );
    """,
    # 11: for how many days a learned limit holds, and how many messages in a row did not
    # address the bot in groups where that begins a new topic.
    """
    ALTER TABLE model_calibrations ADD COLUMN limit_days INTEGER;
    CREATE TABLE idle_messages (session_id TEXT PRIMARY KEY, messages INTEGER NOT NULL);
    """,
    # 12: which turns of a window were shortened to fit, and how far, so that they stay so:
    # pairs of message index and longest text.
    """
    ALTER TABLE windows ADD COLUMN squeezed TEXT NOT NULL DEFAULT '[]';
    """,
    # 13: which rows of a conversation that was brought back were said in another one.
    # A copy of a copy names the first row too.
    """
    CREATE TABLE archived_copies (
        message_id INTEGER PRIMARY KEY,
        original_id INTEGER NOT NULL
    );
    """,
    # 14: short hashes of the messages that a user deleted from the archive while the host
    # held them: their number alone did not tell a shorter answer from a reset. None where
    # only the number is known: the next look at the conversation notes them.
    """
    ALTER TABLE archived_conversations ADD COLUMN forgotten_hashes BLOB NOT NULL DEFAULT x'';
    """,
]


class ForeignSchema(sqlite3.DatabaseError):
    """The file is a database, but not one of this plugin."""

    sqlite_errorcode = sqlite3.SQLITE_ERROR


async def migrate(connection: aiosqlite.Connection, steps: Sequence[str] = MIGRATIONS) -> None:
    """Brings a database to the newest schema, step by step.

    Args:
        connection: A connection without an open transaction.
        steps: The steps; the first is for an empty database.

    Raises:
        sqlite3.Error: A step failed; the database is as it was before that step.
        ForeignSchema: The database lacks a table or column that it should have.
    """
    while (version := await _version(connection)) < len(steps):
        await connection.execute("BEGIN IMMEDIATE")
        try:
            # Another process may have taken the step while this one waited.
            if await _version(connection) == version:
                for statement in _statements(steps[version]):
                    await connection.execute(statement)
                await connection.execute(f"PRAGMA user_version = {version + 1}")
            await connection.commit()
        except BaseException:
            await connection.rollback()
            raise
    await _verify(connection, steps)


async def _version(connection: aiosqlite.Connection) -> int:
    [(version,)] = await connection.execute_fetchall("PRAGMA user_version")
    if version < 0:
        raise ForeignSchema(f"schema version {version}")
    return version


def _statements(script: str) -> Iterator[str]:
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


_COLUMNS = (
    "SELECT t.name, c.name FROM sqlite_master t, pragma_table_info(t.name) c WHERE t.type = 'table'"
)


async def _verify(connection: aiosqlite.Connection, steps: Sequence[str]) -> None:
    fresh = sqlite3.connect(":memory:")
    try:
        fresh.executescript("".join(steps))
        expected = set(fresh.execute(_COLUMNS))
    finally:
        fresh.close()
    missing = expected - set(await connection.execute_fetchall(_COLUMNS))
    if missing:
        names = ", ".join(sorted(f"{table}.{column}" for table, column in missing))
        raise ForeignSchema(f"missing in the schema: {names}")
