"""Fills a database's archive and its index directly, without a host."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from astrbot_plugin_context_manager import search_index
from astrbot_plugin_context_manager.database import Database

_INSERT = (
    "INSERT INTO archived_messages (id, session_id, conversation_id, seq, role, sender, time,"
    " text, content, content_hash) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, '')"
)


@dataclass(frozen=True, slots=True)
class Said:
    """A message to archive; ``seq`` counts within the session's one conversation."""

    session_id: str
    seq: int
    text: str
    role: str = "user"
    sender: str = ""
    time: int = 1_700_000_000


async def archive(database: Database, messages: Sequence[Said], *, step: int = 200) -> None:
    """Adds messages in transactions of ``step`` rows."""
    async with database.reading() as db:
        [(last,)] = await db.execute_fetchall("SELECT coalesce(max(id), 0) FROM archived_messages")
    for start in range(0, len(messages), step):
        rows = list(enumerate(messages[start : start + step], last + 1 + start))
        async with database.writing() as db:
            await db.executemany(_INSERT, _rows(rows))
            await search_index.add(db, [(i, m.session_id, m.sender, m.text) for i, m in rows])


def _rows(rows: Iterable[tuple[int, Said]]) -> list[tuple]:
    return [
        (
            row_id,
            said.session_id,
            f"conversation-{said.session_id}",
            said.seq,
            said.role,
            said.sender,
            said.time,
            said.text,
            f'{{"role": "{said.role}", "content": "{said.text}"}}',
        )
        for row_id, said in rows
    ]
