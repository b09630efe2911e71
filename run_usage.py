"""What the end of a run teaches about its model.

Invariant: a run teaches at most once, from the first thing that tells how it ended.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from .calibration import NOTHING, PROMPT, Counts, add
from .host_answers import answering_model, error_text, is_reply, reported_usage
from .projection import Projection
from .prompt_estimates import Estimate, PromptEstimates, Sent
from .tokens import TokenCounter

SAMPLE = 12


@dataclass(slots=True)
class RunUsage:
    """How the tokens of one run are estimated, and whether its outcome is known.

    Attributes:
        estimate: Made for the request.
        beside: What is sent beside its messages, tool schemas above all.
        settled: Whether the run has taught what it can, or can teach nothing.
    """

    estimate: Estimate
    beside: Counts = NOTHING
    settled: bool = False

    def size(self, tokens: TokenCounter) -> Callable[[Any], int]:
        """Measures messages of the run, in tokens."""
        return lambda message: self.estimate.tokens(tokens.counts_of(message))


def learn_from_answer(
    estimates: PromptEstimates,
    run: RunUsage,
    projection: Projection,
    final: Sequence[Any],
    response: Any,
) -> None:
    """Learns from the last call of a run that ended.

    Args:
        estimates: What learns.
        run: The run.
        projection: What was built for it.
        final: Its messages at the end.
        response: The answer, or the error that stands for it.
    """
    if text := error_text(response):
        learn_from_failure(estimates, run, projection, final, text)
    if text or run.settled:
        return
    run.settled = True
    usage = reported_usage(response)
    # The reply was not part of the call; without one it is unknown what was.
    if usage is not None and final and is_reply(final[-1]):
        counts = counts_of_call(estimates.tokens, final[:-1], run.beside)
        report = projection.report
        least = report.estimated - report.sections["window"]
        answered_by = answering_model(response)
        estimates.report(run.estimate, Sent(counts, least), usage.prompt_tokens, answered_by)


def learn_from_failure(
    estimates: PromptEstimates,
    run: RunUsage,
    projection: Projection,
    final: Sequence[Any],
    text: str,
) -> None:
    """Learns from the text that a run without an answer ended with, empty if none.

    Args:
        estimates: What learns.
        run: The run.
        projection: What was built for it.
        final: Its messages at the end, with those that tool calls added.
        text: The text.
    """
    if text and not run.settled:
        steps = sum(map(run.size(estimates.tokens), projection.added(final)))
        estimated = projection.report.estimated + steps
        run.settled = estimates.failed(run.estimate, estimated, text)


def counts_of_call(tokens: TokenCounter, messages: Iterable[Any], beside: Counts) -> Counts:
    """What a whole prompt is counted by."""
    return add(tokens.counts_of_all(messages), add(beside, PROMPT))


def sample_of(tokens: TokenCounter, messages: Sequence[Any], beside: Counts) -> Counts:
    """Counts of a part of a prompt that is like the whole, at a cost that does not grow."""
    few = messages if len(messages) <= 2 * SAMPLE else [*messages[:SAMPLE], *messages[-SAMPLE:]]
    return add(tokens.counts_of_all(few), beside)
