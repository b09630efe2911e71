"""Rolling compression that nobody asks for, where a session has opted in.

Invariants:

* It is considered after a request is stored, in a task of its own; no reply waits
  for it. A session that has not opted in never calls a model.
* At most one consideration a session; what runs already is never started again.
* A failure starts a pause that grows and survives a restart. A job that saves
  nothing waits for twice as many messages.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from .compression import Compressor, History
from .compression_job import Job
from .compression_log import Pause
from .errors import StorageUnavailable
from .request_state import SavedRequest
from .storage import Session, Storage
from .texts import LANGUAGES, Texts
from .watermark import covered_messages, without_checkpoints

logger = logging.getLogger("astrbot")

# Pauses after the first, the second and every further failure in a row, in seconds.
PAUSES = (60, 300, 900)


@dataclass(frozen=True, slots=True)
class Due:
    """What a job would read.

    Attributes:
        until: Messages, without checkpoints, up to which it reads.
        uncovered: How many of them the summary does not cover yet.
    """

    until: int
    uncovered: int


def due(session: Session, request: SavedRequest, total: int, covered: int) -> Due | None:
    """Whether a session's messages are to be compressed after a request.

    Args:
        session: Its options.
        request: The request.
        total: Messages of the conversation as stored now, without checkpoints.
        covered: Messages that the summary covers.

    Returns:
        What to compress: all uncovered messages outside the window, and with a tail
        all outside the tail; None if too few have gathered.
    """
    least = session.auto_compress_min_messages
    window_start = min(request.window_start, total)
    until = max(window_start, min(request.before_tail, total))
    enough = window_start if not _full(session, request) else until
    # Turns that are pinned have not left, though the summary covers them in passing.
    gathered = enough - max(covered, request.pinned)
    return Due(until, until - covered) if gathered >= least else None


def _full(session: Session, request: SavedRequest) -> bool:
    """Whether a request was so large that the tail is to be all that is sent."""
    reached = request.used >= session.auto_compress_threshold * request.budget
    return bool(session.tail_tokens) and reached


def may_be_due(session: Session, request: SavedRequest) -> bool:
    """Whether it is worth reading a session's history to find out."""
    left = request.window_start - request.pinned
    enough = left >= session.auto_compress_min_messages
    return session.auto_compress and (enough or _full(session, request))


class AutoCompression:
    """Considers sessions after their requests.

    Args:
        storage: Sessions and what their summaries cover.
        compressor: Runs the jobs.
        texts: What is said in a chat.
        load_history: A session's whole history.
        say: Says something in a chat.
        clock: Unix seconds.
    """

    def __init__(
        self,
        storage: Storage,
        compressor: Compressor,
        texts: Texts,
        *,
        load_history: Callable[[str], Awaitable[History]],
        say: Callable[[str, str], Awaitable[Any]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._storage = storage
        self._compressor = compressor
        self._texts = texts
        self._load_history = load_history
        self._say = say
        self._clock = clock
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._closed = False

    def after_save(self, request: SavedRequest) -> None:
        """Considers the session of a request, in the background."""
        session_id = request.session_id
        if self._closed or session_id in self._tasks:
            return
        task = asyncio.get_running_loop().create_task(self._guarded(request))
        self._tasks[session_id] = task
        task.add_done_callback(lambda _: self._tasks.pop(session_id, None))

    async def settle(self) -> None:
        """Waits until everything that is considered now has ended."""
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def close(self) -> None:
        """Ends all considerations; none starts any more."""
        self._closed = True
        for task in list(self._tasks.values()):
            task.cancel()
        await self.settle()

    async def _guarded(self, request: SavedRequest) -> None:
        try:
            await self._consider(request)
        except StorageUnavailable:
            # The database has logged it; the next reply asks again.
            return
        except Exception:
            logger.exception(
                "[context_manager] %s: automatic compression failed", request.session_id
            )

    async def _consider(self, request: SavedRequest) -> None:
        session_id = request.session_id
        session = await self._storage.get_session(session_id)
        if session is None or not may_be_due(session, request):
            return
        pause = await self._compressor.log.pause(session_id)
        if pause is not None and self._clock() < pause.until:
            return
        found = await self._due(session, request)
        if found is None or (pause is not None and found.uncovered < pause.messages):
            return
        if self._compressor.job(session_id).state != "running":
            await self._compress(session, request, found, pause)

    async def _due(self, session: Session, request: SavedRequest) -> Due | None:
        conversation_id, history = await self._load_history(session.session_id)
        if conversation_id != request.conversation_id:
            return None
        watermark = await self._storage.latest_coverage(session.session_id)

        def decide() -> Due | None:
            messages = without_checkpoints(history)
            covered = covered_messages(watermark, conversation_id, messages)
            return due(session, request, len(messages), covered)

        return await asyncio.to_thread(decide)

    async def _compress(
        self, session: Session, request: SavedRequest, found: Due, pause: Pause | None
    ) -> None:
        session_id = session.session_id
        logger.info(
            "[context_manager] %s: automatic compression of %d messages begins",
            session_id,
            found.uncovered,
        )
        await self._notify(session, self._texts.get("auto_started", count=found.uncovered))
        job = self._compressor.start(
            session_id, provider=request.provider, until=found.until, automatic=True
        )
        await job.wait()
        if not job.automatic or job.state == "cancelled":
            return
        message = job.message
        if job.state == "failed":
            message = await self._paused(job, found, pause)
        await self._notify(session, message)

    async def _paused(self, job: Job, found: Due, pause: Pause | None) -> str:
        """Starts the pause that a failed job calls for; returns what to say about it."""
        if job.reason == "no_gain":
            paused = Pause(0, 0, 2 * found.uncovered, job.in_both)
        else:
            failures = (pause.failures if pause else 0) + 1
            seconds = PAUSES[min(failures, len(PAUSES)) - 1]
            reason = _retry_in_both(job, failures, seconds // 60)
            paused = Pause(failures, int(self._clock()) + seconds, 0, reason)
        await self._compressor.log.set_pause(job.session_id, paused)
        in_log = Texts("en-US").own(paused.reason)
        logger.warning("[context_manager] %s: %s", job.session_id, in_log)
        return self._texts.own(paused.reason)

    async def _notify(self, session: Session, text: str) -> None:
        if session.auto_compress_notice:
            await self._say(session.session_id, text)


def _retry_in_both(job: Job, failures: int, minutes: int) -> str:
    """When a failed job is tried again, in both languages, for the page."""
    halves = []
    for language in LANGUAGES:
        texts = Texts(language)
        reason = texts.own(job.in_both)
        halves.append(texts.get("auto_retry", failures=failures, minutes=minutes, reason=reason))
    return " / ".join(halves)
