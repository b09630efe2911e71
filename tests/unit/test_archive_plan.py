"""A plan turns the rows that were into those that are, in bounded time."""

import time

import pytest
from astrbot_plugin_context_manager.archive_rows import plan_changes


def test_a_plan_moves_no_row_that_stays():
    plan = plan_changes(list("abcdef"), list("abXdYf"))
    assert plan.gone == [2, 4]
    assert [(i.start, i.end, i.before) for i in plan.insertions] == [(2, 3, 3), (4, 5, 5)]


def applied(old, plan, new):
    """The old rows as a plan changes them."""
    inserted = {}
    for found in plan.insertions:
        inserted[found.before] = new[found.start : found.end]
    made = []
    for place, entry in enumerate(old):
        made += inserted.get(place, [])
        made += [] if place in plan.gone else [entry]
    return made + inserted.get(None, [])


def rewritten(questions):
    """A chat in which every question was changed, and every answer is the same."""
    old = [text for i in range(questions) for text in (f"u{i}", "ok")]
    return old, [text.upper() if text != "ok" else text for text in old]


def planning_seconds(questions):
    old, new = rewritten(questions)
    started = time.thread_time()
    plan = plan_changes(old, new)
    seconds = time.thread_time() - started
    assert applied(old, plan, new) == new
    return seconds


def test_a_long_rewritten_chat_is_planned_in_bounded_time():
    assert planning_seconds(1000) < 60 * min(planning_seconds(100) for _ in range(5))


@pytest.mark.parametrize("equal", [False, True])
def test_a_long_chat_that_lost_its_beginning_keeps_all_other_rows(equal):
    old = [f"m{0 if equal and i % 2 else i}" for i in range(10_000)]
    plan = plan_changes(old, [*old[2:], "new", "newer"])
    assert plan.gone == [0, 1]
    assert [(i.start, i.end, i.before) for i in plan.insertions] == [(9998, 10_000, None)]


def test_a_plan_of_a_chat_of_usual_size_keeps_every_row_that_can_stay():
    old, new = rewritten(100)
    assert plan_changes(old, new).gone == list(range(0, 200, 2))
