"""One compression as its caller and the page see it.

Invariants:

* A job ends in exactly one final state and belongs to nobody: a caller that goes
  away does not end it.
* ``usage`` is what providers reported; unreported usage is None, never a guess.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from .host import ChatProvider, LLMAnswer


@dataclass(eq=False)
class Job:
    """One compression.

    Attributes:
        focus: What the summary shall pay special attention to.
        rebuild: Whether the summary is made anew from the raw history.
        provider: The model to ask; None: the session's own.
        until: Messages up to which it reads; None: all of them.
        automatic: Whether nobody asked for it.
        state: ``idle``, ``running``, ``done``, ``failed``, ``cancelled`` or
            ``conflict``.
        done: Steps that are behind it; the last one only once it is stored.
        total: Steps planned.
        message: What a user should read about it.
        in_both: The same in both languages, for the page.
        reason: Key of that message's text.
        covered: Messages the summary covers.
        tokens_before: Estimated tokens of the messages that it read.
        tokens_after: Estimated tokens of the summary.
        calls: Calls of the model, failed ones included.
        model: Name of the model that was asked.
        usage: Reported ``input`` and ``output`` tokens of all calls; None if not
            reported.
    """

    session_id: str
    focus: str = ""
    rebuild: bool = False
    provider: ChatProvider | None = None
    until: int | None = None
    automatic: bool = False
    state: str = "idle"
    done: int = 0
    total: int = 0
    message: str = ""
    in_both: str = ""
    reason: str = ""
    version_id: int | None = None
    covered: int | None = None
    tokens_before: int | None = None
    tokens_after: int | None = None
    calls: int = 0
    model: str = ""
    usage: dict[str, int | None] | None = None
    cancel_requested: bool = False
    task: asyncio.Task[None] | None = field(default=None, repr=False)
    past_checks: asyncio.Event = field(default_factory=asyncio.Event, repr=False)
    _moved: asyncio.Event = field(default_factory=asyncio.Event, repr=False)

    @property
    def source(self) -> str:
        """Who the summary is from: ``model`` on request, ``auto`` unasked."""
        return "auto" if self.automatic else "model"

    async def prepared(self) -> None:
        """Waits until the model is being asked, or the job has ended without it.

        A job that has nothing to do is ``failed`` when this returns.
        """
        await self.past_checks.wait()

    async def wait(self) -> None:
        """Waits for the end; a cancelled waiter does not cancel the job."""
        if self.task is not None:
            await asyncio.wait([self.task])

    async def moved(self) -> None:
        """Waits until a step is done or the job has ended."""
        await self._moved.wait()

    def step_to(self, done: int, total: int) -> None:
        """Notes the progress."""
        self.done, self.total = done, total
        self._notify()

    def end(self, state: str, reason: str, message: str, in_both: str) -> None:
        """Puts the job into its final state."""
        self.reason, self.message, self.in_both, self.state = reason, message, in_both, state
        self.past_checks.set()
        self._notify()

    def _notify(self) -> None:
        waiting, self._moved = self._moved, asyncio.Event()
        waiting.set()

    def add_usage(self, answer: LLMAnswer) -> None:
        """Adds what a call cost, as far as it was reported."""
        reported = {"input": answer.input_tokens, "output": answer.output_tokens}
        if all(tokens is None for tokens in reported.values()):
            return
        known = self.usage or dict.fromkeys(reported)
        self.usage = {
            name: known[name] if tokens is None else (known[name] or 0) + tokens
            for name, tokens in reported.items()
        }

    def as_dict(self) -> dict[str, Any]:
        """The job as the page reads it."""
        return {
            "state": self.state,
            "automatic": self.automatic,
            "progress": {"done": self.done, "total": self.total},
            "message": self.in_both,
            "version_id": self.version_id,
            "covered": self.covered,
            "tokens_before": self.tokens_before,
            "tokens_after": self.tokens_after,
            "usage": self.usage,
        }
