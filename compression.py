"""Summaries on request: one job a session, in the background.

Invariants:

* A job changes nothing but the summary, in one transaction, at its very end.
* Only what was sent to the model counts as covered; messages that arrive while a
  job runs are not.
* Fixed memory is never sent to the summarising model.
* A human edit made while a job runs wins.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .errors import CompressionRefused, ContextManagerError
from .host import ChatProvider, Host, LLMAnswer
from .message_text import transcript
from .settings import Settings
from .storage import Session, Storage
from .summary_text import clean_answer, render_prompt, system_prompt
from .texts import Texts
from .tokens import TokenCounter
from .watermark import prefix_hash, without_checkpoints

logger = logging.getLogger("astrbot")

# Share of a model's window that one compression may read; the rest is for the
# answer and for what the estimate misses.
READ_SHARE = 0.8


@dataclass(eq=False)
class Job:
    """One compression.

    Attributes:
        state: ``idle``, ``running``, ``done``, ``failed``, ``cancelled`` or
            ``conflict``.
        done: Model calls finished.
        total: Model calls planned.
        message: What a user should read about it.
        covered: Messages the summary covers.
        tokens_before: Estimated tokens of the covered messages.
        tokens_after: Estimated tokens of the summary.
        usage: Reported ``input`` and ``output`` tokens; None if not reported.
    """

    session_id: str
    focus: str = ""
    state: str = "idle"
    done: int = 0
    total: int = 0
    message: str = ""
    version_id: int | None = None
    covered: int | None = None
    tokens_before: int | None = None
    tokens_after: int | None = None
    usage: dict[str, int | None] | None = None
    cancel_requested: bool = False
    task: asyncio.Task[None] | None = field(default=None, repr=False)

    async def wait(self) -> None:
        """Waits for the end; a cancelled waiter does not cancel the job."""
        if self.task is not None:
            await asyncio.wait([self.task])

    def as_dict(self) -> dict[str, Any]:
        """The job as the page reads it."""
        return {
            "state": self.state,
            "progress": {"done": self.done, "total": self.total},
            "message": self.message,
            "version_id": self.version_id,
            "covered": self.covered,
            "tokens_before": self.tokens_before,
            "tokens_after": self.tokens_after,
            "usage": self.usage,
        }


@dataclass(frozen=True, slots=True)
class _Work:
    """What one job sends, and what it will cover."""

    provider: ChatProvider
    prompt: str
    conversation_id: str
    covered: list[dict[str, Any]]
    tokens: int


class Compressor:
    """Runs the compressions of all sessions, at most one a session."""

    def __init__(
        self,
        storage: Storage,
        host: Host,
        tokens: TokenCounter,
        settings: Settings,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._storage = storage
        self._host = host
        self._tokens = tokens
        self._texts = Texts(settings.language)
        self._clock = clock
        self._jobs: dict[str, Job] = {}
        self._closing = False

    def job(self, session_id: str) -> Job:
        """The running or last job of a session; an idle one if there was none."""
        return self._jobs.get(session_id) or Job(session_id)

    def start(self, session_id: str, focus: str = "") -> Job:
        """Starts a job, or returns the one that runs."""
        current = self._jobs.get(session_id)
        if current is not None and current.state == "running":
            return current
        job = Job(session_id, focus, state="running", total=1)
        self._jobs[session_id] = job
        job.task = asyncio.create_task(self._run(job))
        return job

    async def cancel(self, session_id: str) -> Job:
        """Cancels a running job; its summary is not stored."""
        job = self.job(session_id)
        if job.task is not None and job.state == "running":
            job.cancel_requested = True
            job.task.cancel()
            await job.wait()
        return job

    async def close(self) -> None:
        """Ends all jobs."""
        self._closing = True
        tasks = [job.task for job in self._jobs.values() if job.task and not job.task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, job: Job) -> None:
        try:
            await self._compress(job)
        except CompressionRefused as refusal:
            self._end(job, "failed", refusal.reason_key, **refusal.params)
        except asyncio.CancelledError:
            key = "compress_cancelled" if job.cancel_requested else "compress_interrupted"
            self._end(job, "cancelled", key)
        except ContextManagerError as error:
            job.state, job.message = "failed", str(error)
        except Exception:
            logger.exception("[context_manager] %s: compression failed", job.session_id)
            self._end(job, "failed", "internal_error")

    def _end(self, job: Job, state: str, key: str, **params: Any) -> None:
        job.message = self._texts.get(key, **params)
        job.state = state

    async def _compress(self, job: Job) -> None:
        session = await self._storage.get_session(job.session_id)
        if session is None:
            raise CompressionRefused("nothing_to_compress")
        work = await self._prepare(session, job.focus)
        answer = await self._ask(job, work)
        text = clean_answer(answer.text, role=answer.role, finish=answer.finish)
        job.covered, job.tokens_before = len(work.covered), work.tokens
        job.tokens_after = self._tokens.count_text(text)
        commit = asyncio.ensure_future(self._commit(job, session, work, text))
        try:
            await asyncio.shield(commit)
        except asyncio.CancelledError:
            # Too late to cancel: a commit is never left half-way.
            await commit

    async def _prepare(self, session: Session, focus: str) -> _Work:
        conversation_id, history = await self._host.load_history(session.session_id)
        covered = without_checkpoints(history)
        messages = transcript(covered)
        if conversation_id is None or not messages:
            raise CompressionRefused("nothing_to_compress")
        provider = await self._host.current_chat_provider(session.session_id)
        if provider is None:
            raise CompressionRefused("no_provider")
        prompt = render_prompt(
            session.compress_prompt,
            messages=messages,
            summary=session.summary,
            focus=focus,
            target_tokens=session.summary_target_tokens,
        )
        tokens = await self._tokens.count_in_thread([prompt])
        limit = int(provider.max_context_tokens * READ_SHARE) - session.summary_target_tokens
        if provider.max_context_tokens and tokens > limit:
            raise CompressionRefused("history_too_large", tokens=tokens, limit=max(0, limit))
        size = await self._tokens.count_in_thread([message.text for message in messages])
        return _Work(provider, prompt, conversation_id, covered, size)

    async def _ask(self, job: Job, work: _Work) -> LLMAnswer:
        try:
            answer = await self._host.generate(
                job.session_id, work.provider.provider_id, system_prompt(), work.prompt
            )
        except Exception as error:
            # Providers raise whatever their client libraries raise.
            logger.warning("[context_manager] %s: model call failed: %s", job.session_id, error)
            raise CompressionRefused("model_failed", error=str(error)[:200]) from error
        job.done = 1
        if answer.input_tokens is not None or answer.output_tokens is not None:
            job.usage = {"input": answer.input_tokens, "output": answer.output_tokens}
        return answer

    async def _commit(self, job: Job, session: Session, work: _Work, text: str) -> None:
        version, conflicting = await self._storage.commit_summary(
            session.session_id,
            text,
            base_summary=session.summary,
            model=work.provider.model,
            conversation_id=work.conversation_id,
            covered=len(work.covered),
            prefix_hash=await asyncio.to_thread(prefix_hash, work.covered),
            tokens=job.tokens_after or 0,
            source="model",
            now=int(self._clock()),
        )
        job.version_id = version.id
        if conflicting:
            self._end(job, "conflict", "compress_conflict")
            return
        self._end(
            job,
            "done",
            "compress_done",
            covered=job.covered,
            before=job.tokens_before,
            after=job.tokens_after,
        )
        logger.info(
            "[context_manager] %s: %d messages compressed to %d tokens",
            session.session_id,
            job.covered,
            job.tokens_after,
        )
