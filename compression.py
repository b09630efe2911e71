"""Summaries on request or unasked: one job a session, in the background.

Invariants:

* A job changes nothing but the summary, in one transaction, at its very end.
* Only what was sent to the model counts as covered; messages that arrive while a
  job runs are not.
* Fixed memory is never sent to the summarising model.
* A human edit made while a job runs wins.
* A job ends in exactly one final state, whatever happens to it.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .bounded import BoundedMap
from .compression_job import Job
from .compression_log import CompressionLog
from .errors import (
    CompressionRefused,
    ContextManagerError,
    StorageUnavailable,
    UnknownSession,
)
from .host import ChatProvider, Host
from .settings import Settings
from .storage import Session, Storage
from .summariser import BACKOFF, MODEL_SECONDS, Summariser, Task
from .summary_answer import excerpt
from .summary_plan import MIN_NEW_MESSAGES, Reading, reading
from .texts import Texts, both
from .tokens import TokenCounter

logger = logging.getLogger("astrbot")

# Words after the command that ask for a rebuild.
REBUILD_WORDS = ("重建", "rebuild")
# How often a long job says in the chat how far it is.
REPORTS = 4
# Below this many tokens of messages a summary need not be shorter than they are.
GAIN_LEAST = 300

History = tuple[str | None, list[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class _Work:
    """What one job sends, and what it will cover."""

    session: Session
    reading: Reading
    task: Task
    tokens: int


class Compressor:
    """Runs the compressions of all sessions, at most one a session.

    Args:
        storage: Sessions and versions.
        host: Calls models.
        tokens: Measures prompts and answers.
        settings: Language, and the model for summaries if one is chosen.
        load_history: A session's whole history; the host's stored one if left out.
        clock: Unix seconds.
        model_seconds: How long one call of a model may take.
        backoff: Pauses before the further tries of a failed call, in seconds.
    """

    def __init__(
        self,
        storage: Storage,
        host: Host,
        tokens: TokenCounter,
        settings: Settings,
        *,
        load_history: Callable[[str], Awaitable[History]] | None = None,
        clock: Callable[[], float] = time.time,
        model_seconds: float = MODEL_SECONDS,
        backoff: Sequence[float] = BACKOFF,
    ) -> None:
        self._storage = storage
        self._host = host
        self._tokens = tokens
        self._settings = settings
        self._texts = Texts(settings.language)
        self._load_history = load_history or host.load_history
        self._clock = clock
        self._summariser = Summariser(host, tokens, model_seconds, backoff)
        self.log = CompressionLog(storage.database)
        self._running: dict[str, Job] = {}
        idle_seconds = settings.remembered_minutes * 60
        self._ended_jobs = BoundedMap(settings.remembered_sessions, idle_seconds)
        self._closing = False

    def job(self, session_id: str) -> Job:
        """The running or last job of a session; an idle one if there was none lately."""
        known = self._running.get(session_id) or self._ended_jobs.get(session_id)
        return known or Job(session_id)

    def start(
        self,
        session_id: str,
        focus: str = "",
        rebuild: bool = False,
        *,
        provider: ChatProvider | None = None,
        until: int | None = None,
        automatic: bool = False,
    ) -> Job:
        """Starts a job, or returns the one that runs; see ``Job`` for the arguments."""
        current = self._running.get(session_id)
        if current is not None:
            return current
        job = Job(session_id, focus, rebuild, provider, until, automatic, "running", total=1)
        self._running[session_id] = job
        if self._closing:
            self._end(job, "cancelled", "compress_interrupted")
            return job
        job.task = asyncio.create_task(self._run(job))
        job.task.add_done_callback(lambda task: self._ended(job, task))
        return job

    async def report(
        self, session_id: str, words: str = "", *, provider: ChatProvider | None = None
    ) -> AsyncIterator[str]:
        """Runs a job for a chat; yields what is to be said there.

        Args:
            session_id: The session.
            words: What stood behind the command: a focus, or a rebuild and a focus.
            provider: The model that the asking message chose, if it did.
        """
        first, *rest = words.split(maxsplit=1) or [""]
        rebuild = first.lower() in REBUILD_WORDS
        running = self.job(session_id).state == "running"
        focus = "".join(rest) if rebuild else words
        job = self.start(session_id, focus, rebuild, provider=provider)
        await job.prepared()
        if job.state == "running":
            key = "compress_running" if running else "compress_started"
            if job.total > 1 and not running:
                key = "compress_started_steps"
            yield self._texts.get(key, done=job.done, total=job.total)
        said = job.done * REPORTS // max(1, job.total)
        while job.state == "running":
            await job.moved()
            quarter = job.done * REPORTS // max(1, job.total)
            if job.state == "running" and quarter > said:
                said = quarter
                yield self._texts.get("compress_progress", done=job.done, total=job.total)
        await job.wait()
        yield job.message

    async def next_prompt(self, session: Session) -> str:
        """The first prompt that a compression would send now.

        Where it would send none, its prompt stands there without messages.

        Raises:
            CompressionRefused: The template is broken.
        """
        job = Job(session.session_id)
        try:
            read = await self._read(session, job)
        except CompressionRefused:
            read = Reading("", [], 0, "")
        try:
            provider = await self._provider(job)
        except CompressionRefused:
            provider = ChatProvider("", "", 0)
        return await self._summariser.first_prompt(await self._task(session, job, provider, read))

    async def cancel(self, session_id: str) -> Job:
        """Cancels a running job; a summary that is being stored is still stored."""
        job = self.job(session_id)
        if job.task is not None and job.state == "running":
            job.cancel_requested = True
            job.task.cancel()
            await job.wait()
        return job

    async def close(self) -> None:
        """Ends all jobs; none starts any more."""
        self._closing = True
        tasks = [job.task for job in self._running.values() if job.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, job: Job) -> None:
        try:
            await self._compress(job)
        except CompressionRefused as refusal:
            await self._note_costs(job)
            self._fail(job, refusal.reason_key, **refusal.params)
        except asyncio.CancelledError:
            await self._note_costs(job)
            raise
        except StorageUnavailable:
            self._fail(job, "storage_unavailable")
        except UnknownSession:
            self._fail(job, "unknown_session")
        except ContextManagerError as error:
            self._fail(job, "compress_failed", error=error)
        except Exception as error:
            # The task is the border: nobody awaits what it raises.
            logger.exception("[context_manager] %s: compression failed", job.session_id)
            self._end(job, "failed", "internal_error", error=type(error).__name__)

    def _ended(self, job: Job, task: asyncio.Task[None]) -> None:
        # Also reached by a task that was cancelled before its first step.
        if job.state != "running":
            return
        if task.cancelled():
            key = "compress_cancelled" if job.cancel_requested else "compress_interrupted"
            self._end(job, "cancelled", key)
        else:
            error = task.exception()
            logger.error("[context_manager] %s: compression ended: %r", job.session_id, error)
            self._end(job, "failed", "internal_error", error=type(error).__name__)

    def _fail(self, job: Job, key: str, **params: Any) -> None:
        self._end(job, "failed", key, calls=job.calls, **params)
        logger.warning(
            "[context_manager] %s: not compressed after %d calls (%s) %s",
            job.session_id,
            job.calls,
            key,
            excerpt(", ".join(f"{name}={value}" for name, value in params.items()), 300),
        )

    def _end(self, job: Job, state: str, key: str, **params: Any) -> None:
        job.end(state, key, self._texts.get(key, **params), both(key, **params))
        self._running.pop(job.session_id, None)
        self._ended_jobs[job.session_id] = job

    async def _compress(self, job: Job) -> None:
        session = await self._storage.get_session(job.session_id)
        if session is None:
            raise CompressionRefused("nothing_to_compress")
        work = await self._prepare(session, job)
        text = await self._summariser.summarise(job, work.task)
        commit = asyncio.ensure_future(self._commit(job, work, text))
        while not commit.done():
            # Too late to cancel: a commit is never left half-way.
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([commit])
        commit.result()

    async def _prepare(self, session: Session, job: Job) -> _Work:
        read = await self._read(session, job)
        provider = await self._provider(job)
        job.model = provider.model
        task = await self._task(session, job, provider, read)
        tokens = await self._tokens.count_in_thread(message.text for message in read.messages)
        return _Work(session, read, task, tokens)

    async def _read(self, session: Session, job: Job) -> Reading:
        conversation_id, history = await self._load_history(session.session_id)
        return await asyncio.to_thread(
            reading,
            conversation_id,
            history,
            await self._storage.latest_coverage(session.session_id),
            rebuild=job.rebuild,
            until=job.until,
            least_new=1 if job.automatic else MIN_NEW_MESSAGES,
        )

    async def _task(
        self, session: Session, job: Job, provider: ChatProvider, read: Reading
    ) -> Task:
        return Task(
            provider,
            read.messages,
            summary="" if job.rebuild else session.summary,
            persona=await self._host.persona(session.session_id, read.conversation_id),
            focus=job.focus,
            template=session.compress_prompt,
            target_tokens=session.summary_target_tokens,
        )

    async def _provider(self, job: Job) -> ChatProvider:
        chosen = self._settings.summary_provider_id
        if chosen:
            provider = self._host.chat_provider(chosen)
            if provider is None:
                raise CompressionRefused("summary_provider_missing", provider=chosen)
            return provider
        provider = job.provider or await self._host.current_chat_provider(job.session_id)
        if provider is None:
            raise CompressionRefused("no_provider")
        return provider

    async def _commit(self, job: Job, work: _Work, text: str) -> None:
        session, read = work.session, work.reading
        tokens_after = await self._tokens.count_in_thread([text])
        job.tokens_before, job.tokens_after = work.tokens, tokens_after
        if job.automatic:
            await self._check_gain(work, tokens_after)
        version, conflicting = await self._storage.commit_summary(
            session.session_id,
            text,
            base_summary=session.summary,
            model=work.task.provider.model,
            conversation_id=read.conversation_id,
            covered=read.covered,
            prefix_hash=read.prefix_hash,
            tokens=tokens_after,
            source=job.source,
            now=int(self._clock()),
        )
        job.version_id, job.covered = version.id, read.covered
        logger.info(
            "[context_manager] %s: %d messages, about %d tokens, summarised in %d%s%s",
            session.session_id,
            len(read.messages),
            work.tokens,
            tokens_after,
            " automatically" if job.automatic else "",
            "; kept as a version because of an edit" if conflicting else "",
        )
        await self._note_costs(job)
        # Whatever automatic compression waited for has passed.
        with contextlib.suppress(StorageUnavailable):
            await self.log.set_pause(session.session_id, None)
        job.done = job.total
        self._end(
            job,
            "conflict" if conflicting else "done",
            "compress_conflict" if conflicting else "compress_done",
            covered=job.covered,
            read=len(read.messages),
            before=job.tokens_before,
            after=job.tokens_after,
        )

    async def _check_gain(self, work: _Work, tokens_after: int) -> None:
        """A summary that grows by as much as it saves would be made again and again."""
        before = await self._tokens.count_in_thread([work.session.summary])
        if work.tokens >= GAIN_LEAST and tokens_after - before >= work.tokens:
            raise CompressionRefused("no_gain", before=before + work.tokens, after=tokens_after)

    async def _note_costs(self, job: Job) -> None:
        """Costs are worth a line in the log, not a failed job."""
        if job.calls:
            with contextlib.suppress(StorageUnavailable):
                await self.log.add(job)
