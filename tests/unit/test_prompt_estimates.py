"""Estimates follow what was reported, survive restarts, and never fail a request."""

import math
import sqlite3
from random import Random
from types import SimpleNamespace

import pytest
from astrbot_plugin_context_manager.bounded import BoundedMap
from astrbot_plugin_context_manager.calibration import (
    CALIBRATED_MARGIN,
    LEAST_UNKNOWN_MARGIN,
    NEW_PROMPT_MARGIN,
    Calibration,
)
from astrbot_plugin_context_manager.calibration_store import KEPT_MODELS, CalibrationStore
from astrbot_plugin_context_manager.context_logic import Cost, Limits, build
from astrbot_plugin_context_manager.database import Database
from astrbot_plugin_context_manager.host_types import ChatProvider, host_limit
from astrbot_plugin_context_manager.prompt_estimates import PromptEstimates, Sent
from astrbot_plugin_context_manager.tokens import TokenCounter

from .messages import Msg, user
from .synthetic import CHINESE_CHEAP, CHINESE_EXPENSIVE, Provider, counts_of_prompt, system, talk

MODEL = ChatProvider("p", "m", 0)
OTHER = ChatProvider("q", "n", 0)
DAY = 86_400


@pytest.fixture
async def database(tmp_path):
    opened = await Database.open(tmp_path / "context_manager.db")
    yield opened
    await opened.close()


def estimates(database=None, clock=lambda: 1_000_000.0):
    store = CalibrationStore(database) if database else None
    return PromptEstimates(TokenCounter(), store, clock, BoundedMap(128, math.inf))


class Chat:
    """A conversation that is estimated, sent and reported, request by request."""

    def __init__(self, made, provider, name="c", models=(MODEL,), seed=1, turns=60, chinese=None):
        self.made, self.provider, self.name, self.models = made, provider, name, models
        self.messages, self.turns = [system()], iter(talk(seed, turns, chinese))
        self.least = 0

    async def ask(self, reported="true", answered_by=""):
        """Estimate and true size of the next request."""
        question, answer = next(self.turns)
        self.messages.append(question)
        estimate = await self.made.estimate(self.models, self.name)
        counts = counts_of_prompt(self.made.tokens, self.messages)
        true = self.provider.count(self.messages)
        value = true if reported == "true" else reported
        value = value(true) if callable(value) else value
        self.made.report(estimate, Sent(counts, self.least), value, answered_by)
        self.messages.append(answer)
        return estimate, estimate.tokens(counts), true

    async def talk(self, requests):
        return [await self.ask() for _ in range(requests)]


async def test_the_margin_follows_what_is_known():
    made = estimates()
    chat = Chat(made, Provider())
    margins = [(await chat.ask())[0].margin for _ in range(5)]
    assert margins == [LEAST_UNKNOWN_MARGIN, *[NEW_PROMPT_MARGIN] * 2, *[CALIBRATED_MARGIN] * 2]
    new = await made.estimate([MODEL], "another conversation")
    assert new.margin == NEW_PROMPT_MARGIN


@pytest.mark.parametrize("weights", [CHINESE_EXPENSIVE, CHINESE_CHEAP])
async def test_with_the_last_usage_known_a_prompt_is_estimated_within_one_per_cent(weights):
    made = estimates()
    errors = []
    for seed in range(4):
        chat = Chat(made, Provider(weights), f"c{seed}", seed=seed, turns=30)
        errors += [abs(e / true - 1) for _, e, true in (await chat.talk(30))[1:]]
    errors.sort()
    assert sum(errors) / len(errors) < 0.01
    assert errors[int(len(errors) * 0.95)] < 0.03


async def test_what_one_chat_teaches_changes_nothing_for_another_one_at_once():
    made, seen = estimates(), []
    for number in range(30):
        seen.append(await made.estimate([MODEL], None))
        await Chat(made, Provider(), f"c{number}", seed=number).ask()
    assert len({(e.weights, e.margin) for e in seen}) == 3


async def test_the_last_reported_number_is_the_basis_of_the_next():
    made = estimates()
    chat = Chat(made, Provider())
    await chat.talk(3)
    counts = counts_of_prompt(made.tokens, chat.messages[:-1])
    estimate = await made.estimate([MODEL], "c")
    assert estimate.tokens(counts) == chat.provider.count(chat.messages[:-1])


@pytest.mark.parametrize("weights", [CHINESE_EXPENSIVE, CHINESE_CHEAP])
async def test_a_cut_to_half_overshoots_by_less_than_three_per_cent(weights):
    made, provider, over = estimates(), Provider(weights), []
    for seed in range(4):
        chat = Chat(made, provider, f"c{seed}", seed=seed, turns=40)
        for _ in range(40):
            estimate, _, _ = await chat.ask()
            half = [chat.messages[0], *chat.messages[len(chat.messages) // 2 :]]
            estimated = estimate.tokens(counts_of_prompt(made.tokens, half))
            over.append(provider.count(half) / estimated - 1)
    over = sorted(over[8:])
    assert over[int(len(over) * 0.95)] < 0.03


@pytest.mark.parametrize("keep_ratio", [0.5, 1.0])
async def test_no_request_of_a_long_talk_is_over_its_budget(keep_ratio):
    made, provider, mark, cuts = estimates(), Provider(), None, 0
    messages, budget = [], 3000
    for question, answer in talk(5, 150):
        messages.append(question)
        estimate = await made.estimate([MODEL], "c")
        limits = Limits(
            budget, keep_ratio=keep_ratio, margin=estimate.margin, framing=estimate.framing
        )
        built = build(
            [system(), *messages],
            fixed_memory="",
            summary="",
            limits=limits,
            mark=mark,
            tool_tokens=0,
            measure=lambda m, e=estimate: Cost(e.tokens(made.tokens.counts_of(m)), 0),
            make_message=lambda draft: Msg(draft.role, draft.content),
        )
        mark, cuts = built.mark, cuts + built.report.cut
        true = provider.count(built.messages)
        assert true <= budget - limits.reply_reserve
        made.report(estimate, Sent(counts_of_prompt(made.tokens, built.messages)), true)
        messages.append(answer)
    assert cuts > 3


async def test_what_is_learned_in_between_does_not_move_a_window_that_fits():
    made, provider = estimates(), Provider()
    chat = Chat(made, provider)
    await chat.talk(20)
    marks = []
    for _ in ("before", "after"):
        estimate = await made.estimate([MODEL], "c")
        marks.append(
            build(
                [*chat.messages, user("next")],
                fixed_memory="",
                summary="",
                limits=Limits(3000, margin=estimate.margin, framing=estimate.framing),
                mark=marks[0] if marks else None,
                tool_tokens=0,
                measure=lambda m, e=estimate: Cost(e.tokens(made.tokens.counts_of(m)), 0),
                make_message=lambda draft: Msg(draft.role, draft.content),
            ).mark
        )
        await Chat(made, provider, "elsewhere", seed=9).talk(10)
    assert marks[0] == marks[1] and marks[0].message_index > 0


# Reports that teach nothing


@pytest.mark.parametrize(
    "reported", [None, 0, -10, True, 12.5, math.nan, math.inf, "900", 10**12, object()]
)
async def test_an_absurd_report_changes_nothing(reported):
    made = estimates()
    chat = Chat(made, Provider())
    await chat.talk(5)
    before = await made.estimate([MODEL], "c")
    await chat.ask(reported)
    assert await made.estimate([MODEL], "c") == before


async def test_after_missing_reports_the_last_one_still_counts():
    made = estimates()
    chat = Chat(made, Provider())
    await chat.talk(5)
    for _ in range(4):
        await chat.ask(None)
    _, estimated, true = await chat.ask()
    assert estimated == pytest.approx(true, rel=0.02)


async def test_one_report_three_times_too_high_is_not_believed():
    made = estimates()
    chat = Chat(made, Provider())
    await chat.talk(6)
    await chat.ask(lambda true: true * 3)
    _, estimated, true = await chat.ask()
    assert estimated == pytest.approx(true, rel=0.02)
    assert made.learned_limits() == []


async def test_a_model_that_counts_differently_from_now_on_is_learned_anew():
    made = estimates()
    chat = Chat(made, Provider(CHINESE_EXPENSIVE), chinese=0.9)
    await chat.talk(10)
    chat.provider = Provider(CHINESE_CHEAP)
    await chat.talk(8)
    _, estimated, true = await chat.ask()
    assert estimated == pytest.approx(true, rel=0.02)
    assert made.learned_limits() == []


# Limits


async def test_a_context_that_was_cut_by_the_host_lowers_the_limit():
    made = estimates()
    chat = Chat(made, Provider())
    await chat.talk(10)
    _, _, true = await chat.ask(lambda true: true * 7 // 10)
    estimate = await made.estimate([MODEL], "c")
    assert estimate.model_limit == true * 7 // 10
    [(key, limit)] = made.learned_limits()
    assert (key.model, limit) == ("m", estimate.model_limit)


async def test_the_cut_context_does_not_spoil_the_next_estimate():
    made = estimates()
    chat = Chat(made, Provider())
    await chat.talk(10)
    await chat.ask(lambda true: true * 7 // 10)
    _, estimated, true = await chat.ask()
    assert estimated == pytest.approx(true, rel=0.02)


async def test_a_limit_that_is_contradicted_at_once_is_withdrawn():
    made = estimates()
    chat = Chat(made, Provider())
    await chat.talk(10)
    for _ in range(2):
        await chat.ask(lambda true: true * 7 // 10)
    assert (await made.estimate([MODEL], "c")).model_limit is None


async def test_a_limit_that_is_still_too_high_is_lowered():
    made = estimates()
    chat = Chat(made, Provider())
    await chat.talk(20)
    await chat.ask(lambda true: true * 8 // 10)
    _, _, true = await chat.ask(lambda true: true * 6 // 10)
    assert (await made.estimate([MODEL], "c")).model_limit == true * 6 // 10


async def test_a_model_that_is_not_calibrated_learns_no_limit():
    made = estimates()
    chat = Chat(made, Provider())
    await chat.ask()
    await chat.ask(lambda true: true * 7 // 10)
    assert made.learned_limits() == []


async def test_a_report_below_what_the_host_never_drops_is_no_limit():
    made = estimates()
    chat = Chat(made, Provider())
    await chat.talk(20)
    chat.least = chat.provider.count(chat.messages) * 9 // 10
    await chat.ask(lambda true: true * 7 // 10)
    assert made.learned_limits() == []


async def test_a_model_whose_reports_always_differ_learns_no_limit_from_one_more():
    made, random = estimates(), Random(3)
    chat = Chat(made, Provider())
    for _ in range(30):
        await chat.ask(lambda true: int(true * random.uniform(0.9, 1.1)))
    await chat.ask(lambda true: int(true * 0.8))
    assert made.learned_limits() == []


@pytest.mark.parametrize("factor", [6, 0.1])
async def test_a_first_report_that_no_vocabulary_explains_teaches_nothing(factor):
    made = estimates()
    chat = Chat(made, Provider())
    for _ in range(12):
        await chat.ask(None)
    await chat.ask(lambda true: int(true * factor))
    assert (await made.estimate([MODEL], "c")).margin == LEAST_UNKNOWN_MARGIN


async def test_an_error_text_lowers_the_limit_even_without_any_report():
    made = estimates()
    estimate = await made.estimate([MODEL], "c")
    assert made.failed(estimate, 9000, "maximum context length is 8192 tokens")
    assert (await made.estimate([MODEL], "other")).model_limit == 8192
    assert not made.failed(estimate, 9000, "Connection error.")


async def test_a_learned_limit_is_shown_until_it_is_forgotten():
    now = [1_000_000.0]
    made = estimates(clock=lambda: now[0])
    made.failed(await made.estimate([MODEL], "c"), 9000, "context_length_exceeded")
    assert [limit for _, limit in made.learned_limits()] == [6300]
    now[0] += 2 * DAY
    assert 6300 < made.learned_limits()[0][1] < 9000
    now[0] += 9 * DAY
    assert made.learned_limits() == []
    assert (await made.estimate([MODEL], "c")).model_limit is None


async def test_a_limit_that_a_fallback_taught_counts():
    made = estimates()
    assert (await made.estimate([MODEL, OTHER], None)).model_limit is None
    made.failed(await made.estimate([OTHER], None), 4000, "context_length_exceeded")
    assert (await made.estimate([MODEL, OTHER], None)).model_limit == 2800


def test_the_smallest_window_of_the_chain_counts():
    chain = [ChatProvider("p", "m", 128_000), ChatProvider("r", "n", 8000), OTHER]
    assert host_limit(chain) == 6560
    assert host_limit([OTHER]) is None and host_limit([]) is None


# Which model


async def test_the_answer_of_a_fallback_teaches_the_fallback():
    made = estimates()
    chat = Chat(made, Provider(), models=(MODEL, OTHER))
    await chat.talk(6)
    before = (await made.estimate([MODEL], None)).weights
    for _ in range(3):
        await chat.ask(lambda true: true // 2, answered_by="n")
    assert (await made.estimate([MODEL], None)).weights == before
    assert (await made.estimate([OTHER], None)).weights != before
    assert made.learned_limits() == []


async def test_a_name_that_no_model_has_is_the_first_ones():
    made = estimates()
    chat = Chat(made, Provider(), models=(MODEL, OTHER))
    for _ in range(3):
        await chat.ask(answered_by="m-2024-08-06")
    assert (await made.estimate([MODEL], "c")).margin == CALIBRATED_MARGIN


async def test_another_models_last_report_is_not_used():
    made = estimates()
    await Chat(made, Provider()).talk(5)
    estimate = await made.estimate([OTHER], "c")
    assert estimate.weights == tuple(Calibration().weights)
    assert estimate.margin == LEAST_UNKNOWN_MARGIN


async def test_without_a_model_there_is_still_an_estimate():
    made = estimates()
    estimate = await made.estimate([], None)
    assert estimate.tokens(made.tokens.counts_of(user("hello there"))) > 0
    made.report(estimate, Sent(counts_of_prompt(made.tokens, [user()])), 100)
    assert not made.failed(estimate, 100, "context_length_exceeded")


async def test_a_request_without_a_conversation_teaches_the_model_only():
    made = estimates()
    chat = Chat(made, Provider(), name=None)
    await chat.talk(4)
    assert len(made.anchors) == 0
    assert (await made.estimate([MODEL], None)).margin == NEW_PROMPT_MARGIN


# What is kept


async def test_everything_learned_survives_a_restart(database):
    made = estimates(database)
    chat = Chat(made, Provider())
    await chat.talk(8)
    made.failed(await made.estimate([OTHER], None), 4000, "context_length_exceeded")
    await made.settle()
    again = estimates(database)
    for models, conversation in (([MODEL], "c"), ([OTHER], None), ([MODEL, OTHER], "c")):
        assert await again.estimate(models, conversation) == await made.estimate(
            models, conversation
        )
    fresh = estimates(database)
    await fresh.load_limits()
    assert [key.model for key, _ in fresh.learned_limits()] == ["n"]


async def test_a_failing_database_costs_nothing_but_the_memory(database, caplog):
    made = estimates(database)
    await database.close()
    chat = Chat(made, Provider())
    results = await chat.talk(6)
    await made.settle()
    await made.load_limits()
    _, estimated, true = results[-1]
    assert estimated == pytest.approx(true, rel=0.02)
    assert not [r for r in caplog.records if r.exc_info]


@pytest.mark.parametrize("broken", ["not json", "[]", "{}", '{"weights": [NaN]}'])
async def test_a_damaged_row_is_as_good_as_none(database, broken):
    made = estimates(database)
    await Chat(made, Provider()).talk(5)
    await made.settle()
    async with database.writing() as db:
        await db.execute("UPDATE model_calibrations SET state = ?, limit_tokens = 'x'", (broken,))
        await db.execute("UPDATE reported_prompts SET counts = ?", (broken,))
    estimate = await estimates(database).estimate([MODEL], "c")
    assert estimate.weights == tuple(Calibration().weights)
    assert estimate.margin == LEAST_UNKNOWN_MARGIN


async def test_names_no_database_takes_are_kept_in_memory(database):
    made = estimates(database)
    odd = ChatProvider("p", "\ud800model", 0)
    await Chat(made, Provider(), models=(odd,)).talk(4)
    await made.settle()
    assert (await made.estimate([odd], "c")).margin == CALIBRATED_MARGIN


async def test_rows_of_models_are_bounded(database):
    store = CalibrationStore(database)
    async with database.writing() as db:
        await db.executemany(
            "INSERT INTO model_calibrations VALUES ('p', ?, 'script', '{}', NULL, NULL, ?, NULL)",
            [(f"m{number}", number) for number in range(KEPT_MODELS + 20)],
        )
    made = PromptEstimates(TokenCounter(), store, lambda: 5000.0, BoundedMap(128, math.inf))
    await Chat(made, Provider()).ask()
    await made.settle()
    async with database.reading() as db:
        rows = await db.execute_fetchall("SELECT model FROM model_calibrations")
    assert len(rows) == KEPT_MODELS
    assert {("m",), (f"m{KEPT_MODELS + 19}",)} <= set(map(tuple, rows))
    assert ("m0",) not in set(map(tuple, rows))


async def test_memory_of_models_is_bounded_and_forgotten_ones_come_back(database):
    made = estimates(database)
    await Chat(made, Provider()).talk(4)
    await made.settle()
    known = await made.estimate([MODEL], "c")
    for number in range(200):
        await made.estimate([ChatProvider("p", f"m{number}", 0)], None)
    assert len(made._models) <= 64
    assert await made.estimate([MODEL], "c") == known


async def test_a_report_after_its_model_was_forgotten_is_ignored():
    made = estimates()
    estimate = await made.estimate([MODEL], "c")
    for number in range(100):
        await made.estimate([ChatProvider("p", f"m{number}", 0)], None)
    made.report(estimate, Sent(counts_of_prompt(made.tokens, [user()])), 50)
    assert len(made.anchors) == 0


async def test_counts_by_script_and_by_vocabulary_are_learned_apart():
    made = estimates()
    await Chat(made, Provider()).talk(5)
    made.tokens = TokenCounter()
    await made.tokens.load()
    assert made.tokens.ready
    assert (await made.estimate([MODEL], "c")).margin == LEAST_UNKNOWN_MARGIN


async def test_a_report_on_counts_of_another_kind_is_ignored():
    made = estimates()
    estimate = await made.estimate([MODEL], "c")
    await made.tokens.load()
    made.report(estimate, Sent(counts_of_prompt(made.tokens, [user()])), 50)
    assert len(made.anchors) == 0


async def test_an_unexpected_error_while_saving_is_logged_and_nothing_else(caplog):
    store = SimpleNamespace(
        model=lambda key: _raise(sqlite3.OperationalError("x")), anchor=_none, save=_broken
    )
    made = estimates()
    await made.estimate([MODEL], "c")
    made.store = store
    await Chat(made, Provider(), name=None).ask()
    await made.settle()
    assert any(record.exc_info for record in caplog.records)


async def _none(*_):
    return None


async def _broken(*_):
    raise RuntimeError("unexpected")


async def _raise(error):
    raise error
