"""What compressions cost, and which sessions' automatic ones have to wait.

Invariants:

* Costs are sums by session, source and model, so the table does not grow with jobs;
  calls whose usage was not reported are counted, never guessed.
* A pause survives a restart.
"""

from dataclasses import dataclass

from .compression_job import Job
from .database import Database


@dataclass(frozen=True, slots=True)
class JobCosts:
    """What all compressions of a session cost.

    Attributes:
        jobs: Compressions that called a model.
        calls: Calls of models, failed ones included.
        unreported: Compressions of which nothing was reported.
        input_tokens: Reported tokens that models read.
        output_tokens: Reported tokens that models wrote.
    """

    jobs: int = 0
    calls: int = 0
    unreported: int = 0
    input_tokens: int = 0
    output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Pause:
    """Why and how long automatic compression of a session waits.

    Attributes:
        failures: Failures in a row.
        until: Unix seconds before which nothing starts.
        messages: Uncovered messages below which nothing starts.
        reason: What a user should read about it, in both languages.
    """

    failures: int
    until: int
    messages: int
    reason: str


class CompressionLog:
    """Reads and writes costs and pauses.

    Every method raises ``StorageUnavailable`` if the database cannot be used.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, job: Job) -> None:
        """Adds what a finished job cost."""
        usage = job.usage or {}
        async with self._database.writing() as db:
            await db.execute(
                "INSERT INTO compression_costs (session_id, source, model, jobs, calls, unreported,"
                " input_tokens, output_tokens) VALUES (?, ?, ?, 1, ?, ?, ?, ?)"
                " ON CONFLICT (session_id, source, model) DO UPDATE SET jobs = jobs + 1,"
                " calls = calls + excluded.calls, unreported = unreported + excluded.unreported,"
                " input_tokens = input_tokens + excluded.input_tokens,"
                " output_tokens = output_tokens + excluded.output_tokens",
                (
                    job.session_id,
                    job.source,
                    job.model,
                    job.calls,
                    int(job.usage is None),
                    usage.get("input") or 0,
                    usage.get("output") or 0,
                ),
            )

    async def costs(self, session_id: str) -> JobCosts:
        """What all compressions of a session cost."""
        columns = ", ".join(f"coalesce(sum({name}), 0)" for name in JobCosts.__slots__)
        async with self._database.reading() as db:
            rows = await db.execute_fetchall(
                f"SELECT {columns} FROM compression_costs WHERE session_id = ?", (session_id,)
            )
        return JobCosts(*next(iter(rows)))

    async def pause(self, session_id: str) -> Pause | None:
        """The pause of a session, or None."""
        async with self._database.reading() as db:
            rows = await db.execute_fetchall(
                "SELECT failures, until, messages, reason FROM compression_pauses"
                " WHERE session_id = ?",
                (session_id,),
            )
        return next((Pause(*row) for row in rows), None)

    async def set_pause(self, session_id: str, pause: Pause | None) -> None:
        """Starts a pause, or ends it with None."""
        async with self._database.writing() as db:
            if pause is None:
                await db.execute(
                    "DELETE FROM compression_pauses WHERE session_id = ?", (session_id,)
                )
                return
            await db.execute(
                "INSERT OR REPLACE INTO compression_pauses VALUES (?, ?, ?, ?, ?)",
                (session_id, pause.failures, pause.until, pause.messages, pause.reason),
            )
