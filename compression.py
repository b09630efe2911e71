"""Summaries on request: one job a session, in the background.

Invariants:

* A job changes nothing but the summary, in one transaction, at its very end.
* Only what was sent to the model counts as covered; messages that arrive while a
  job runs are not.
* Fixed memory is never sent to the summarising model.
* A human edit made while a job runs wins.
* A job ends in exactly one final state, whatever happens to it, and belongs to
  nobody: a caller that goes away does not end it.
"""

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .errors import (
    CompressionRefused,
    ContextManagerError,
    StorageUnavailable,
    UnknownSession,
)
from .host import ChatProvider, Host, LLMAnswer
from .message_text import TranscriptMessage, transcript
from .settings import Settings
from .storage import Session, Storage
from .summary_answer import clean_answer, excerpt
from .summary_text import render_prompt, system_prompt
from .texts import Texts
from .tokens import TokenCounter
from .watermark import prefix_hash, without_checkpoints

logger = logging.getLogger("astrbot")

# Share of a model's window that one compression may read; the rest is for the
# answer and for what the estimate misses.
READ_SHARE = 0.8
# Providers have shorter limits of their own; this ends a call that hangs for good.
MODEL_SECONDS = 900

_SECRET = re.compile(r"(?i)\b(sk-|bearer\s+|(?:api_?)?key[=:]\s*)[\w.*~+/-]{6,}")


@dataclass(eq=False)
class Job:
    """One compression.

    Attributes:
        state: ``idle``, ``running``, ``done``, ``failed``, ``cancelled`` or
            ``conflict``.
        rebuild: Whether the summary so far is left out of the prompt.
        done: Steps whose result is stored.
        total: Steps planned.
        message: What a user should read about it.
        covered: Messages the summary covers.
        tokens_before: Estimated tokens of the covered messages.
        tokens_after: Estimated tokens of the summary.
        usage: Reported ``input`` and ``output`` tokens; None if not reported.
    """

    session_id: str
    focus: str = ""
    rebuild: bool = False
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
    past_checks: asyncio.Event = field(default_factory=asyncio.Event, repr=False)

    async def prepared(self) -> None:
        """Waits until the model is being asked, or the job has ended without it.

        A job that has nothing to do is ``failed`` when this returns.
        """
        await self.past_checks.wait()

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

    session: Session
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
        model_seconds: float = MODEL_SECONDS,
    ) -> None:
        self._storage = storage
        self._host = host
        self._tokens = tokens
        self._texts = Texts(settings.language)
        self._clock = clock
        self._model_seconds = model_seconds
        self._jobs: dict[str, Job] = {}
        self._closing = False

    def job(self, session_id: str) -> Job:
        """The running or last job of a session; an idle one if there was none."""
        return self._jobs.get(session_id) or Job(session_id)

    def start(self, session_id: str, focus: str = "", rebuild: bool = False) -> Job:
        """Starts a job, or returns the one that runs."""
        current = self._jobs.get(session_id)
        if current is not None and current.state == "running":
            return current
        job = Job(session_id, focus, rebuild, state="running", total=1)
        self._jobs[session_id] = job
        if self._closing:
            self._end(job, "cancelled", "compress_interrupted")
            return job
        job.task = asyncio.create_task(self._run(job))
        job.task.add_done_callback(lambda task: self._ended(job, task))
        return job

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
        tasks = [job.task for job in self._jobs.values() if job.task and not job.task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, job: Job) -> None:
        try:
            await self._compress(job)
        except CompressionRefused as refusal:
            self._fail(job, refusal.reason_key, **refusal.params)
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
        self._end(job, "failed", key, **params)
        logger.warning(
            "[context_manager] %s: not compressed (%s) %s",
            job.session_id,
            key,
            excerpt(", ".join(f"{name}={value}" for name, value in params.items()), 300),
        )

    def _end(self, job: Job, state: str, key: str, **params: Any) -> None:
        job.message = self._texts.get(key, **params)
        job.state = state
        job.past_checks.set()

    async def _compress(self, job: Job) -> None:
        session = await self._storage.get_session(job.session_id)
        if session is None:
            raise CompressionRefused("nothing_to_compress")
        work = await self._prepare(session, job)
        job.past_checks.set()
        answer = await self._ask(job, work)
        text = clean_answer(
            answer.text, role=answer.role, reasoning=answer.reasoning, finish=answer.finish
        )
        commit = asyncio.ensure_future(self._commit(job, work, text))
        while not commit.done():
            # Too late to cancel: a commit is never left half-way.
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([commit])
        commit.result()

    async def _prepare(self, session: Session, job: Job) -> _Work:
        conversation_id, history = await self._host.load_history(session.session_id)
        covered = without_checkpoints(history)
        messages = await asyncio.to_thread(transcript, covered)
        if conversation_id is None or not messages:
            raise CompressionRefused("nothing_to_compress")
        provider = await self._host.current_chat_provider(session.session_id)
        if provider is None:
            raise CompressionRefused("no_provider")
        prompt = await self._prompt(session, job, messages, provider)
        size = await self._tokens.count_in_thread(message.text for message in messages)
        return _Work(session, provider, prompt, conversation_id, covered, size)

    async def _prompt(
        self,
        session: Session,
        job: Job,
        messages: list[TranscriptMessage],
        provider: ChatProvider,
    ) -> str:
        target = session.summary_target_tokens
        prompt = await asyncio.to_thread(
            render_prompt,
            session.compress_prompt,
            messages=messages,
            summary="" if job.rebuild else session.summary,
            focus=job.focus,
            target_tokens=target,
        )
        if provider.max_context_tokens:
            tokens = await self._tokens.count_in_thread([system_prompt(), prompt])
            limit = max(0, int(provider.max_context_tokens * READ_SHARE) - target)
            if tokens > limit:
                raise CompressionRefused("history_too_large", tokens=tokens, limit=limit)
        return prompt

    async def _ask(self, job: Job, work: _Work) -> LLMAnswer:
        try:
            async with asyncio.timeout(self._model_seconds):
                answer = await self._host.generate(
                    job.session_id, work.provider.provider_id, system_prompt(), work.prompt
                )
        except Exception as error:
            # Providers raise whatever their client libraries raise.
            raise CompressionRefused("model_failed", error=_shown(error)) from error
        if answer.input_tokens is not None or answer.output_tokens is not None:
            job.usage = {"input": answer.input_tokens, "output": answer.output_tokens}
        return answer

    async def _commit(self, job: Job, work: _Work, text: str) -> None:
        session = work.session
        tokens_after = self._tokens.count_text(text)
        version, conflicting = await self._storage.commit_summary(
            session.session_id,
            text,
            base_summary=session.summary,
            model=work.provider.model,
            conversation_id=work.conversation_id,
            covered=len(work.covered),
            prefix_hash=await asyncio.to_thread(prefix_hash, work.covered),
            tokens=tokens_after,
            source="model",
            now=int(self._clock()),
        )
        job.done, job.version_id, job.covered = 1, version.id, len(work.covered)
        job.tokens_before, job.tokens_after = work.tokens, tokens_after
        logger.info(
            "[context_manager] %s: %d messages, about %d tokens, summarised in %d%s",
            session.session_id,
            job.covered,
            work.tokens,
            tokens_after,
            "; kept as a version because of an edit" if conflicting else "",
        )
        self._end(
            job,
            "conflict" if conflicting else "done",
            "compress_conflict" if conflicting else "compress_done",
            covered=job.covered,
            before=job.tokens_before,
            after=job.tokens_after,
        )


def _shown(error: Exception) -> str:
    """An error of a provider, fit for a group chat: one line, without keys."""
    name = type(error).__name__
    text = _SECRET.sub(r"\1***", excerpt(str(error)))
    return f"{name}: {text}" if text else name
