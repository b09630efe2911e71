"""The database's schema, as numbered steps.

Step n takes a database from ``user_version`` n-1 to n, in one transaction.
A released step is never changed; a new schema is a new step.
"""

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
]


async def migrate(connection: aiosqlite.Connection) -> None:
    """Brings a database to the newest schema, step by step."""
    row = await (await connection.execute("PRAGMA user_version")).fetchone()
    for number, script in enumerate(MIGRATIONS[row[0] :], start=row[0] + 1):
        await connection.executescript(
            f"BEGIN IMMEDIATE; {script}; PRAGMA user_version = {number}; COMMIT;"
        )
