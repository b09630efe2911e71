"""What pictures, reasoning, limits and chance do to reports is not learned as text."""

from types import SimpleNamespace

import pytest
from astrbot_plugin_context_manager.calibration import FEATURES, NOTHING, PROMPT, add
from astrbot_plugin_context_manager.calibration_store import ModelKey
from astrbot_plugin_context_manager.context_logic import Cost, Limits, build
from astrbot_plugin_context_manager.host_types import ChatProvider, host_limit
from astrbot_plugin_context_manager.model_limits import LearnedLimit, learned
from astrbot_plugin_context_manager.projection import Projection, Report
from astrbot_plugin_context_manager.prompt_estimates import PromptEstimates, Sent
from astrbot_plugin_context_manager.run_usage import (
    RunUsage,
    learn_from_answer,
    learn_from_failure,
)
from astrbot_plugin_context_manager.tokens import IMAGE_TOKENS

from .messages import Msg, assistant, tool, user
from .synthetic import Provider, counts_of_prompt, system, talk
from .test_prompt_estimates import DAY, MODEL, Chat, database, estimates

__all__ = ["database"]

KEY = ModelKey("p", "m", "script")


def some(feature, count):
    """Counts of one feature alone."""
    return tuple(count if name == feature else 0.0 for name in FEATURES)


class ChatWithMore(Chat):
    """A chat whose prompts hold something beside its texts."""

    async def ask_with(self, counted, true_size):
        """Relative error of the next estimate."""
        question, answer = next(self.turns)
        self.messages.append(question)
        estimate = await self.made.estimate(self.models, self.name)
        counts = add(counts_of_prompt(self.made.tokens, self.messages), counted)
        true = self.provider.count(self.messages) + true_size
        self.made.report(estimate, Sent(counts), true)
        self.messages.append(answer)
        return estimate.tokens(counts) / true - 1


async def taught(made, chats=3, requests=6):
    for number in range(chats):
        await Chat(made, Provider(), f"before {number}", seed=20 + number).talk(requests)


async def shown(chat, sizes, kept=4):
    """Errors of prompts that hold pictures of the last so many turns; 0: no picture."""
    errors = []
    for turn in range(len(sizes)):
        held = [size for size in sizes[max(0, turn + 1 - kept) : turn + 1] if size]
        media = some("media", IMAGE_TOKENS * len(held))
        errors.append(await chat.ask_with(media, sum(held)))
    return errors


# Pictures


@pytest.mark.parametrize("size", [85, 1500])
async def test_pictures_that_leave_a_prompt_leave_its_texts_estimated_as_before(size):
    made = estimates()
    await taught(made)
    errors = await shown(ChatWithMore(made, Provider()), [0] * 8 + [size] * 3 + [0] * 6)
    assert max(map(abs, errors[9:])) < 0.03


async def test_pictures_of_other_sizes_than_before_are_no_sign_of_a_limit():
    made = estimates()
    await taught(made)
    sizes = [0] * 8 + [85] * 12 + [1500] * 12 + [85] * 12
    errors = await shown(ChatWithMore(made, Provider()), sizes)
    assert made.learned_limits() == []
    # Pictures are known once all that are held are of the new size.
    assert max(map(abs, [*errors[24:32], *errors[36:]])) < 0.03


async def test_pictures_of_all_sizes_do_not_spoil_the_estimate_of_texts():
    made = estimates()
    await taught(made)
    sizes = [85, 1500, 0, 300, 1100, 85, 0, 2000] * 5
    await shown(ChatWithMore(made, Provider(), turns=60), sizes)
    chat = Chat(made, Provider(), "new", seed=9)
    chat.messages += [m for turn in talk(77, 8) for m in turn]
    _, estimated, true = await chat.ask()
    assert estimated == pytest.approx(true, rel=0.03)


# Reasoning


def test_reasoning_is_counted_apart_from_texts():
    made = estimates()
    parts = [{"type": "think", "think": "hmm " * 100}, {"type": "text", "text": "yes"}]
    whole, plain = made.tokens.counts_of(assistant(parts)), made.tokens.counts_of(assistant("yes"))
    thought = FEATURES.index("reasoning")
    assert whole[thought] > 50
    assert (*whole[:thought], 0, *whole[thought + 1 :]) == pytest.approx(plain)
    assert made.tokens.count_message(assistant(parts)) > 50


@pytest.mark.parametrize("counted", [0.0, 1.0])
async def test_reasoning_that_a_provider_counts_or_ignores_is_learned_without_a_limit(counted):
    made = estimates()
    await taught(made)
    chat = ChatWithMore(made, Provider())
    for _ in range(4):
        await chat.ask_with(NOTHING, 0)
    errors = []
    for _ in range(4):
        errors.append(await chat.ask_with(some("reasoning", 3000), round(3000 * counted)))
        errors.append(await chat.ask_with(NOTHING, 0))
    assert made.learned_limits() == []
    assert max(map(abs, errors[1::2])) < 0.03


# Limits


async def cut_by_the_host(chat, limit):
    """Asks once; the host drops the oldest turns until the model takes the rest."""

    def reported(_):
        messages = list(chat.messages)
        while chat.provider.count(messages) > limit:
            del messages[1:3]
        return chat.provider.count(messages)

    return await chat.ask(reported)


async def test_a_chat_that_grows_slowly_past_the_limit_of_its_model_finds_it():
    made = estimates()
    await taught(made, 4, 20)
    before = list(made._models[KEY].calibration.weights)
    chat, over = Chat(made, Provider(), seed=3, turns=100), 0
    while not made.learned_limits():
        _, estimated, true = await cut_by_the_host(chat, 6000)
        over += true > 6000
        assert over < 10
        assert estimated == pytest.approx(true, rel=0.04)
    [(_, limit)] = made.learned_limits()
    assert 5400 < limit <= 6000
    after = made._models[KEY].calibration.weights
    assert after[:3] == pytest.approx(before[:3], rel=0.03)


@pytest.mark.parametrize(
    ("windows", "limit"), [((128_000, 8192), 8192), ((0, 32_000), 32_000), ((2000, 0), None)]
)
async def test_a_stated_window_bounds_requests_by_the_plugins_own_estimate(windows, limit):
    chain = [ChatProvider(f"p{n}", "m", window) for n, window in enumerate(windows)]
    assert (await estimates().estimate(chain, None)).model_limit == limit


async def test_a_text_the_host_takes_for_short_stays_within_the_stated_window():
    made = estimates()
    model = ChatProvider("p", "m", 8192)
    ids = [m for n in range(300) for m in (user(f"id {n}"), assistant(f"{n:08d}" * 12))]
    estimate = await made.estimate([model], "c")
    limits = Limits(
        100_000, host_limit([model]), model_limit=estimate.model_limit, margin=estimate.margin
    )
    built = build(
        [*ids, user("next")],
        fixed_memory="",
        summary="",
        limits=limits,
        mark=None,
        tool_tokens=0,
        # The host counts three tenths of a token a character.
        measure=lambda m: Cost(estimate.tokens(made.tokens.counts_of(m)), len(m.content) * 3 // 10),
        make_message=lambda draft: Msg(draft.role, draft.content),
    )
    assert 3000 < estimate.tokens(made.tokens.counts_of_all(built.messages)) < 8192


async def test_requests_that_were_on_their_way_do_not_withdraw_a_limit():
    made = estimates()
    chats = [Chat(made, Provider(), f"c{n}", seed=n) for n in range(4)]
    for chat in chats:
        await chat.talk(12)
    waiting = []
    for chat in chats:
        chat.messages.append(next(chat.turns)[0])
        waiting.append((chat, await made.estimate([MODEL], chat.name)))
    weights = list(made._models[KEY].calibration.weights)
    for chat, estimate in waiting:
        counts = counts_of_prompt(made.tokens, chat.messages)
        made.report(estimate, Sent(counts), chat.provider.count(chat.messages) * 7 // 10)
    assert len(made.learned_limits()) == 1
    assert made._models[KEY].calibration.weights == weights


@pytest.mark.parametrize(("again", "days"), [(0, 1), (1, 7)])
async def test_a_single_low_report_is_believed_for_a_day_a_second_one_for_a_week(again, days):
    now = [1_000_000.0]
    made = estimates(clock=lambda: now[0])
    chat = Chat(made, Provider())
    await chat.talk(20)
    await cut_by_the_host(chat, chat.provider.count(chat.messages) * 7 // 10)
    for _ in range(again):
        now[0] += DAY
        assert made.learned_limits() == []
        await chat.talk(1)
        await cut_by_the_host(chat, chat.provider.count(chat.messages) * 7 // 10)
    now[0] += (days - 1) * DAY
    assert made.learned_limits()
    now[0] += DAY
    assert made.learned_limits() == []


def test_what_an_error_states_is_believed_for_a_week_at_once():
    assert learned(8000, 5, None, stated=True).days == 7


def test_a_report_of_another_size_long_after_the_last_one_is_odd_again():
    before = LearnedLimit(8000, 0, 1)
    assert learned(4000, 10 * DAY, before, stated=False).days == 1
    assert learned(4000, 100, before, stated=False).days == 7
    assert learned(7000, 10 * DAY, before, stated=False).days == 7


async def test_for_how_long_a_limit_holds_survives_a_restart(database):
    made = estimates(database)
    chat = Chat(made, Provider())
    await chat.talk(20)
    await cut_by_the_host(chat, chat.provider.count(chat.messages) * 7 // 10)
    await made.settle()
    for day, held in ((0, 1), (1, 0)):
        again = estimates(database, clock=lambda day=day: 1_000_000.0 + day * DAY)
        await again.load_limits()
        assert len(again.learned_limits()) == held


# Failures


def failed_run(estimate, steps):
    """A run that failed after its tools had added so many tokens of text."""
    current, system_message = user("now"), system("be kind")
    projection = Projection(
        [system_message, current],
        [system_message],
        current,
        [system_message],
        None,
        Report(sections={"window": 6000}),
    )
    added = [tool("ab " * steps)] if steps else []
    return RunUsage(estimate), projection, [system_message, current, *added]


@pytest.mark.parametrize(("steps", "limit"), [(9000, 8192), (0, 4200)])
async def test_what_tools_added_counts_in_what_proved_too_long(steps, limit):
    made = estimates()
    estimate = await made.estimate([MODEL], "c")
    run, projection, final = failed_run(estimate, steps)
    text = "maximum context length is 8192 tokens"
    learn_from_failure(made, run, projection, final, text)
    assert run.settled and (await made.estimate([MODEL], "c")).model_limit == limit


@pytest.mark.parametrize("known", [True, False])
async def test_a_run_whose_tools_are_not_known_teaches_nothing(known, monkeypatch):
    made, reports = estimates(), []
    monkeypatch.setattr(PromptEstimates, "report", lambda *given: reports.append(given))
    run, projection, final = failed_run(await made.estimate([MODEL], "c"), 0)
    run.settled = not known
    usage = SimpleNamespace(input_other=900, input_cached=0, output=3)
    answer = SimpleNamespace(role="assistant", usage=usage)
    learn_from_answer(made, run, projection, [*final, assistant("done")], answer)
    assert len(reports) == known


# Scripts


@pytest.mark.parametrize(
    ("text", "feature", "factor"), [("か" * 1000, "kana", 0.7), ("😀" * 1000, "other", 3.0)]
)
async def test_a_thousand_kana_or_emoji_of_the_vocabulary_are_corrected_by_reports(
    text, feature, factor
):
    made = estimates()
    await made.tokens.load()
    counts = made.tokens.counts_of(user(text))
    assert counts[FEATURES.index(feature)] == sum(counts) - 1 == 1000
    for chat in range(4):
        for turn in range(1, 5):
            estimate = await made.estimate([MODEL], f"c{chat}")
            prompt = tuple(count * turn for count in counts)
            made.report(estimate, Sent(add(prompt, PROMPT)), round(turn * (1000 * factor + 4)))
    new = await made.estimate([MODEL], "new")
    assert new.tokens(counts) == pytest.approx(1000 * factor, rel=0.05)
