"""Measures token estimates against exact tokenizers, in simulated conversations.

    python -m dev.bench_tokens [--conversations N] [--turns N] [--only FAMILY]

Whole prompts are estimated, reported and learned from as in a chat, by the code
that a request runs. Ends with 1 if a figure misses what it must be.
"""

import argparse
import asyncio
import json
import logging
import math
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from .importable import keep_astrbot_out_of_the_checkout, make_plugin_importable

keep_astrbot_out_of_the_checkout()
make_plugin_importable()

from astrbot.core.agent.context.token_counter import EstimateTokenCounter  # noqa: E402
from astrbot.core.agent.message import Message  # noqa: E402
from astrbot_plugin_context_manager.bounded import BoundedMap  # noqa: E402
from astrbot_plugin_context_manager.calibration import PROMPT, add  # noqa: E402
from astrbot_plugin_context_manager.context_logic import Cost, Limits, build  # noqa: E402
from astrbot_plugin_context_manager.host_types import ChatProvider  # noqa: E402
from astrbot_plugin_context_manager.prompt_estimates import (  # noqa: E402
    Estimate,
    PromptEstimates,
    Sent,
)
from astrbot_plugin_context_manager.tokens import TokenCounter  # noqa: E402

from . import bench_corpus as corpus  # noqa: E402
from .bench_families import FAMILIES, Count, Family, install_packages  # noqa: E402

BUDGET = 8000
# A model is known once it has answered in so many conversations.
KNOWN_AFTER = 3


@dataclass(slots=True)
class Talk:
    """One simulated conversation: what its requests are made of."""

    name: str
    head: list[Message]
    tools: list[dict[str, Any]]
    history: list[Message]
    turns: list[tuple[Message, Message]]


@dataclass(slots=True)
class Errors:
    """Signed relative errors of estimates, by situation."""

    last_known: list[float] = field(default_factory=list)
    new_talk: list[float] = field(default_factory=list)
    first_contact: list[float] = field(default_factory=list)
    halves: list[float] = field(default_factory=list)
    host: list[float] = field(default_factory=list)
    quarter: list[float] = field(default_factory=list)


class Truth:
    """Counts prompts as a family's provider would."""

    def __init__(self, family: Family) -> None:
        self.family = family
        self._count: Count = family.load()
        self._known: dict[str, int] = {}

    def text(self, text: str) -> int:
        if text not in self._known:
            self._known[text] = self._count(text)
        return self._known[text]

    def prompt(self, messages: list[Message], tools: list[dict[str, Any]]) -> int:
        """Tokens of a whole prompt."""
        family = self.family
        schemas = sum(self.text(json.dumps(tool, ensure_ascii=False)) for tool in tools)
        texts = sum(self.text(m.content) + family.message_tokens for m in messages)
        return texts + family.prompt_tokens + round(schemas * family.tool_factor)


def talks(count: int, turns: int, seed: int) -> Iterator[Talk]:
    """Conversations of all kinds, some with tools, some with a history."""
    random = Random(seed)
    for number in range(count):
        kind = corpus.KINDS[number % len(corpus.KINDS)]
        language = random.choice(("chinese", "english"))
        head = corpus.text(random, language, random.randint(4, 30))
        tools = [corpus.tool_schema(random, i) for i in range(random.choice((0, 0, 6, 15)))]
        made = [_turn(random, kind) for _ in range(turns)]
        old = random.choice((0, 0, turns // 3))
        history = [message for turn in made[:old] for message in turn]
        name = f"{kind} {number}"
        yield Talk(name, [Message(role="system", content=head)], tools, history, made[old:])


def _turn(random: Random, kind: str) -> tuple[Message, Message]:
    pieces = max(1, min(12, int(random.lognormvariate(1.1, 0.8))))
    return (
        Message(role="user", content=corpus.text(random, kind, random.randint(1, 4)) or "?"),
        Message(role="assistant", content=corpus.text(random, kind, pieces) or "."),
    )


def _estimates(tokens: TokenCounter) -> PromptEstimates:
    return PromptEstimates(tokens, None, lambda: 0.0, BoundedMap(128, math.inf))


async def measure_truth(family: Family, truth: Truth, tokens: TokenCounter, given: list) -> Errors:
    """Estimates every prompt of growing conversations before it is reported."""
    errors, estimates, host = Errors(), _estimates(tokens), _host_counter()
    for number, talk in enumerate(given):
        tools = tokens.counts_of_tools(talk.tools)
        messages = [*talk.head, *talk.history]
        for step, (question, answer) in enumerate(talk.turns):
            messages.append(question)
            estimate = await estimates.estimate([ChatProvider("p", family.name, 0)], talk.name)
            true = truth.prompt(messages, talk.tools)
            counts = add(tokens.counts_of_all(messages), tools)
            error = _estimated(estimate, counts) / true - 1
            known = number >= KNOWN_AFTER
            first = errors.new_talk if known else errors.first_contact
            (errors.last_known if step else first).append(error)
            if step and known and len(messages) >= 8:
                half = [*talk.head, *messages[len(messages) // 2 | 1 :]]
                halved = add(tokens.counts_of_all(half), tools)
                errors.halves.append(
                    _estimated(estimate, halved) / truth.prompt(half, talk.tools) - 1
                )
            errors.host.append(sum(map(host, messages)) / true - 1)
            errors.quarter.append(sum(len(m.content) for m in messages) / 4 / true - 1)
            estimates.report(estimate, Sent(add(counts, PROMPT)), true)
            messages.append(answer)
    return errors


def _host_counter() -> Callable[[Message], int]:
    counter, known = EstimateTokenCounter(), {}

    def count(message: Message) -> int:
        if id(message) not in known:
            known[id(message)] = counter.count_tokens([message])
        return known[id(message)]

    return count


def _estimated(estimate: Estimate, counts: Any) -> int:
    return estimate.tokens(counts) + estimate.framing


@dataclass(slots=True)
class Fill:
    """How requests used the budget."""

    requests: int = 0
    cuts: int = 0
    exceeded: int = 0
    worst: float = 0.0
    shares: list[float] = field(default_factory=list)


async def measure_budget(
    family: Family, truth: Truth, tokens: TokenCounter, given: list, keep_ratio: float
) -> Fill:
    """Builds every request of long conversations under a budget, as the plugin does."""
    fill, estimates = Fill(), _estimates(tokens)
    for talk in given:
        tools, mark, messages = tokens.counts_of_tools(talk.tools), None, list(talk.history)
        for question, answer in talk.turns:
            messages.append(question)
            estimate = await estimates.estimate([ChatProvider("p", family.name, 0)], talk.name)
            limits = Limits(
                BUDGET, keep_ratio=keep_ratio, margin=estimate.margin, framing=estimate.framing
            )
            built = build(
                [*talk.head, *messages],
                fixed_memory="",
                summary="",
                limits=limits,
                mark=mark,
                tool_tokens=estimate.tokens(tools),
                measure=lambda m, e=estimate: Cost(e.tokens(tokens.counts_of(m)), 0),
                make_message=lambda draft: Message(role=draft.role, content=draft.content),
            )
            mark = built.mark
            true = truth.prompt(built.messages, talk.tools)
            _note(fill, built.report, true, limits)
            counts = add(tokens.counts_of_all(built.messages), tools)
            estimates.report(estimate, Sent(add(counts, PROMPT)), true)
            messages.append(answer)
    return fill


def _note(fill: Fill, report: Any, true: int, limits: Limits) -> None:
    usable = BUDGET - limits.reply_reserve
    fill.requests += 1
    fill.cuts += report.cut
    fill.exceeded += true > usable
    fill.worst = max(fill.worst, true / usable)
    if report.left_out_turns:
        fill.shares.append(true / usable)


# Figures


def _mean(errors: list[float]) -> float:
    return 100 * statistics.fmean(map(abs, errors))


def _at(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return 100 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _p95(errors: list[float]) -> float:
    return _at(list(map(abs, errors)), 0.95)


def truth_row(errors: Errors) -> tuple[list[float], list[bool]]:
    """Figures of one family in per cent, and which of them miss their limit."""
    overshoot = _at([-error for error in errors.halves], 0.95)
    figures = [
        _mean(errors.last_known),
        _p95(errors.last_known),
        _mean(errors.new_talk),
        _p95(errors.new_talk),
        overshoot,
        _mean(errors.first_contact),
        _mean(errors.host),
        _mean(errors.quarter),
    ]
    limits = [1.0, 3.0, 3.0, None, 3.0, None, None, None]
    missed = [limit is not None and x > limit for x, limit in zip(figures, limits, strict=True)]
    return figures, missed


def _table(head: list[str], rows: list[list[str]]) -> None:
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    for row in [head, ["-" * width for width in widths], *rows]:
        cells = [row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]
        print("| " + " | ".join(cells) + " |")


async def run(options: argparse.Namespace) -> int:
    """Prints the tables; returns how many figures miss their limit."""
    install_packages()
    tokens = TokenCounter()
    await tokens.load()
    logging.disable(logging.INFO)
    short = list(talks(options.conversations, 30, seed=11))
    long = list(talks(max(7, options.conversations // 4), options.turns, seed=12))
    errors: dict[str, Errors] = {}
    fills: dict[tuple[str, float], Fill] = {}
    for family in FAMILIES:
        if options.only.lower() in family.name.lower():
            print(f"counting as {family.name}", file=sys.stderr, flush=True)
            truth = Truth(family)
            errors[family.name] = await measure_truth(family, truth, tokens, short)
            for ratio in (0.7, 1.0):
                fill = await measure_budget(family, truth, tokens, long, ratio)
                fills[family.name, ratio] = fill
    return _print_truth(errors) + _print_budget(fills)


def _print_truth(measured: dict[str, Errors]) -> int:
    rows, missed = [], 0
    for name, errors in measured.items():
        figures, misses = truth_row(errors)
        cells = [f"{x:.2f}{' !' if miss else ''}" for x, miss in zip(figures, misses, strict=True)]
        rows.append([name, str(len(errors.host)), *cells])
        missed += sum(misses)
    print("\nError of whole prompts in per cent (! = misses its limit)\n")
    _table(
        [
            "family",
            "requests",
            "last usage known, mean (<=1)",
            "p95 (<=3)",
            "new chat, known model, mean (<=3)",
            "p95",
            "cut to half, over p95 (<=3)",
            "unknown model, mean",
            "host's own, mean",
            "chars/4, mean",
        ],
        rows,
    )
    return missed


def _print_budget(measured: dict[tuple[str, float], Fill]) -> int:
    print(f"\nRequests under a budget of {BUDGET} tokens, of which 800 are kept for the reply\n")
    head = ["family", "keep ratio", "requests", "cuts", "over", "fullest", "mean fill once cut"]
    _table(head, [_fill_row(name, ratio, fill) for (name, ratio), fill in measured.items()])
    requests = sum(fill.requests for fill in measured.values())
    exceeded = sum(fill.exceeded for fill in measured.values())
    share = 1000 * exceeded / requests
    print(f"\nover the budget: {exceeded} of {requests} requests, {share:.2f} in 1,000 (<=1)")
    return int(share > 1)


def _fill_row(name: str, ratio: float, fill: Fill) -> list[str]:
    mean = 100 * statistics.fmean(fill.shares) if fill.shares else 0.0
    numbers = map(str, (fill.requests, fill.cuts, fill.exceeded))
    return [name, f"{ratio:.1f}", *numbers, f"{100 * fill.worst:.1f} %", f"{mean:.1f} %"]


def main() -> int:
    """Runs the bench; 1 if a figure misses its limit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--conversations", type=int, default=42)
    parser.add_argument("--turns", type=int, default=150)
    parser.add_argument("--only", default="", help="families whose name holds this")
    missed = asyncio.run(run(parser.parse_args()))
    print("every figure within its limit" if not missed else f"{missed} figures miss their limit")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
