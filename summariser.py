"""Asks a model for a summary, step by step.

Invariants:

* Steps run in order; each carries the summary so far, and each message is in
  exactly one prompt that got its answer.
* A step that fails is tried again, a call that failed after a pause; when it fails
  for good, the whole summary does. Nothing is stored here.
* An answer that is no summary, or far too long, never becomes one; none is cut.
"""

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .compression_job import Job
from .errors import CompressionRefused
from .host import ChatProvider, Host, LLMAnswer
from .message_text import TranscriptMessage
from .summary_answer import clean_answer, excerpt
from .summary_plan import steps
from .summary_text import render_prompt, shorten_prompt, system_prompt
from .tokens import TokenCounter

# Share of a model's window that one step may use; the rest is for what the
# estimate misses.
READ_SHARE = 0.8
# What a model is taken to read whose window the host does not know.
UNKNOWN_WINDOW = 64_000
# A summary that fills a small window would leave no room to read anything.
TARGET_SHARE = 5
# Steps with less room would cost more in prompts than they read.
LEAST_ROOM = 256
# Providers have shorter limits of their own; this ends a call that hangs for good.
MODEL_SECONDS = 900
# Pauses before a failed call is tried again, in seconds.
BACKOFF = (2.0, 8.0)
# A summary above this multiple of its target is asked to be shortened.
FAR_OVER = 2
# A small target is not met by a few words.
FAR_OVER_LEAST = 300

_SECRET = re.compile(r"(?i)\b(sk-|bearer\s+|(?:api_?)?key[=:]\s*)[\w.*~+/-]{6,}")
_TOO_LONG = re.compile(
    r"context.{0,10}length|context.{0,10}window|prompt is too long|input.{0,20}too long"
    r"|too many (?:input )?tokens|maximum.{0,20}tokens|reduce the length|上下文.{0,8}(?:超|过长)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Task:
    """What is to be summarised, and how.

    Attributes:
        provider: The model that is asked.
        messages: What it has to read.
        summary: The summary so far, which is carried along; may be empty.
        persona: The role that the assistant plays in the chat; may be empty.
        focus: What the user asked to pay attention to.
        template: The prompt's template; blank means the default one.
        target_tokens: Wanted length of the summary.
    """

    provider: ChatProvider
    messages: list[TranscriptMessage]
    summary: str = ""
    persona: str = ""
    focus: str = ""
    template: str = ""
    target_tokens: int = 1500

    @property
    def window(self) -> int:
        """Tokens that the model reads at once."""
        return self.provider.max_context_tokens or UNKNOWN_WINDOW

    @property
    def target(self) -> int:
        """The wanted length, within what the model's window allows."""
        return min(self.target_tokens, max(1, self.window // TARGET_SHARE))

    @property
    def limit(self) -> int:
        """Tokens above which a summary is far too long."""
        return max(FAR_OVER * self.target, self.target + FAR_OVER_LEAST)

    def prompt(self, messages: Sequence[TranscriptMessage], summary: str) -> str:
        """The prompt of one step."""
        return render_prompt(
            self.template,
            messages=messages,
            summary=summary,
            focus=self.focus,
            persona=self.persona,
            target_tokens=self.target,
        )


class Summariser:
    """Asks models; one for all jobs.

    Args:
        host: Calls the model.
        tokens: Measures prompts and answers.
        model_seconds: How long one call may take.
        backoff: Pauses before the further tries of a failed call, in seconds.
    """

    def __init__(
        self,
        host: Host,
        tokens: TokenCounter,
        model_seconds: float = MODEL_SECONDS,
        backoff: Sequence[float] = BACKOFF,
    ) -> None:
        self._host = host
        self._tokens = tokens
        self._model_seconds = model_seconds
        self._backoff = backoff

    async def first_prompt(self, task: Task) -> str:
        """The first prompt that a task would send; one without messages if it has none.

        Raises:
            CompressionRefused: The template is broken.
        """
        try:
            rest = await self._steps(task, await self._room(task), task.messages)
        except CompressionRefused as refusal:
            if refusal.reason_key != "window_too_small":
                raise
            rest = []
        return await asyncio.to_thread(task.prompt, rest[0] if rest else [], task.summary)

    async def summarise(self, job: Job, task: Task) -> str:
        """The summary of all messages of a task.

        Args:
            job: Gets progress and usage.
            task: What to summarise.

        Raises:
            CompressionRefused: No summary was made.
        """
        summary, done = task.summary, 0
        room = await self._room(task)
        rest = await self._steps(task, room, task.messages)
        job.step_to(0, len(rest))
        job.past_checks.set()
        while rest:
            try:
                summary = await self._step(job, task, rest[0], summary)
            except CompressionRefused as refusal:
                room //= 2
                if refusal.reason_key != "prompt_too_long" or room < LEAST_ROOM:
                    raise
                unread = [message for step in rest for message in step]
                rest = await self._steps(task, room, unread)
                job.step_to(done, done + len(rest))
                continue
            rest = rest[1:]
            done += 1
            if rest:
                job.step_to(done, done + len(rest))
        return summary

    async def _room(self, task: Task) -> int:
        """Tokens of messages that one step may hold.

        Raises:
            CompressionRefused: The template is broken, or the window is too small.
        """
        frame = await asyncio.to_thread(task.prompt, [], "")
        fixed = await self._tokens.count_in_thread([system_prompt(), frame])
        carried = await self._tokens.count_in_thread([task.summary])
        needed = fixed + max(carried, task.target * 3 // 2) + task.target
        limit = int(task.window * READ_SHARE)
        if limit - needed < LEAST_ROOM:
            raise CompressionRefused("window_too_small", needed=needed, limit=limit)
        return limit - needed

    async def _steps(
        self, task: Task, room: int, messages: list[TranscriptMessage]
    ) -> list[list[TranscriptMessage]]:
        return await asyncio.to_thread(steps, messages, room, self._tokens.count_text)

    async def _step(
        self, job: Job, task: Task, messages: list[TranscriptMessage], summary: str
    ) -> str:
        prompt = await asyncio.to_thread(task.prompt, messages, summary)
        spoken = [message.text for message in messages if message.role == "assistant"]

        async def attempt() -> str:
            text = await self._asked(job, task, prompt, spoken)
            return await self._within_limit(job, task, text)

        return await self._tried(attempt)

    async def _tried(self, attempt: Callable[[], Any]) -> str:
        for pause in self._backoff:
            try:
                return await attempt()
            except CompressionRefused as refusal:
                if refusal.final:
                    raise
                # An answer that is no use was at least an answer: no need to wait.
                if refusal.reason_key == "model_failed":
                    await asyncio.sleep(pause)
        return await attempt()

    async def _asked(self, job: Job, task: Task, prompt: str, spoken: Sequence[str]) -> str:
        answer = await self._call(job, task.provider, prompt)
        self._check_whole(answer, prompt)
        return clean_answer(
            answer.text,
            role=answer.role,
            reasoning=answer.reasoning,
            finish=answer.finish,
            spoken=spoken,
        )

    async def _call(self, job: Job, provider: ChatProvider, prompt: str) -> LLMAnswer:
        job.calls += 1
        try:
            async with asyncio.timeout(self._model_seconds):
                answer = await self._host.generate(
                    job.session_id, provider, system_prompt(), prompt
                )
        except Exception as error:
            # Providers raise whatever their client libraries raise.
            if _TOO_LONG.search(str(error)):
                raise CompressionRefused(
                    "prompt_too_long", final=True, error=shown(error)
                ) from error
            raise CompressionRefused(
                "model_failed", final=_is_final(error), error=shown(error)
            ) from error
        job.add_usage(answer)
        return answer

    def _check_whole(self, answer: LLMAnswer, prompt: str) -> None:
        """The host drops messages that a provider finds too long, and asks again."""
        bare = 2 * self._tokens.count_text(system_prompt()) + 20
        if answer.input_tokens is None or answer.input_tokens > bare:
            return
        if len(prompt) > 40 * bare:
            raise CompressionRefused(
                "prompt_too_long", final=True, error=f"{answer.input_tokens} tokens read"
            )

    async def _within_limit(self, job: Job, task: Task, text: str) -> str:
        """The text, shortened once by the model if it is far too long."""
        if await self._size(text) <= task.limit:
            return text
        prompt = shorten_prompt(text, task.target)
        shorter = await self._asked(job, task, prompt, [])
        size = await self._size(shorter)
        if size > task.limit:
            raise CompressionRefused("answer_too_long", final=True, tokens=size, target=task.target)
        return shorter

    async def _size(self, text: str) -> int:
        return await self._tokens.count_in_thread([text])


def _is_final(error: Exception) -> bool:
    """Whether a provider refused the request itself: the same one will not do."""
    status = getattr(error, "status_code", None)
    return isinstance(status, int) and 400 <= status < 500 and status not in (408, 409, 425, 429)


def shown(error: Exception) -> str:
    """An error of a provider, fit for a group chat: one line, without keys."""
    name = type(error).__name__
    text = _SECRET.sub(r"\1***", excerpt(str(error)))
    return f"{name}: {text}" if text else name
