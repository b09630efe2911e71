"""Whatever the host did to the list, the whole history comes back."""

from itertools import pairwise

import pytest
from astrbot_plugin_context_manager.context_logic import repaired_history
from astrbot_plugin_context_manager.projection import repaired_behind_short
from hypothesis import given, settings
from hypothesis import strategies as st

from .messages import Msg, assistant, build_request, call, tool, turns, user


def cut_request(count=20, keep=2):
    messages = [Msg("system", "s"), *turns(count), user("now")]
    projection = build_request(messages, budget=20 * keep + 30)
    assert projection.report.left_out_turns > 0
    return messages, projection


def test_the_whole_history_stands_before_the_current_message_and_what_the_run_added_after_it():
    messages, projection = cut_request()
    answer = assistant("new")
    assert projection.restore([*projection.messages, answer]) == [*messages, answer]


def test_restoring_twice_is_the_same_as_restoring_once():
    _, projection = cut_request()
    once = projection.restore([*projection.messages, assistant("new")])
    assert projection.restore(once) == once


def test_messages_the_host_dropped_from_the_sent_window_come_back():
    messages, projection = cut_request()
    answer = assistant("new")
    assert projection.restore([projection.messages[0], messages[-1], answer]) == [*messages, answer]


def test_a_dropped_current_message_comes_back_before_what_the_run_added():
    messages, projection = cut_request()
    added = [assistant(None, tool_calls=call("1")), tool("1"), assistant("done")]
    assert projection.restore([projection.messages[0], *added]) == [*messages, *added]


def test_a_summary_the_host_put_in_front_of_the_current_message_is_not_kept():
    messages, projection = cut_request()
    host_summary = [user("summary"), assistant("ok")]
    final = [projection.messages[0], *host_summary, messages[-1], assistant("new")]
    assert projection.restore(final)[: len(messages)] == messages
    assert host_summary[0] not in projection.restore(final)


def test_a_repeated_current_message_is_kept_once():
    messages, projection = cut_request()
    final = [projection.messages[0], messages[-1], messages[-1], assistant("new")]
    assert projection.restore(final).count(messages[-1]) == 1


def test_messages_of_the_running_turn_that_were_there_at_the_start_are_kept_once():
    running = [user("now"), assistant(None, tool_calls=call("1")), tool("1")]
    messages = [*turns(20), *running]
    projection = build_request(messages, budget=90)
    assert projection.restore(projection.messages) == messages


def test_a_list_without_a_user_message_is_given_back_as_it_was():
    messages = [Msg("system", "s"), assistant("hello")]
    projection = build_request(messages, fixed_memory="rule")
    assert projection.restore([*projection.messages, assistant("x")])[:2] == messages


@st.composite
def histories(draw):
    messages = [Msg("system", "prompt")] if draw(st.booleans()) else []
    for number in range(draw(st.integers(0, 25))):
        kind = draw(st.sampled_from(["plain", "tool", "silent", "orphan", "parts", "empty"]))
        text = draw(st.text(max_size=60)) + f"#{number}"
        question = user("" if kind == "empty" else text)
        messages.append(question)
        if kind == "tool":
            messages += [assistant(None, tool_calls=call(f"c{number}")), tool(f"c{number}", text)]
        if kind == "orphan":
            messages.append(tool("nobody", text))
        if kind == "parts":
            messages.append(assistant([{"type": "text", "text": text}, {"type": "think"}]))
        elif kind != "silent":
            messages.append(assistant(text))
    return [*messages, user("the current message")]


@settings(max_examples=150, deadline=None)
@given(histories(), st.integers(1024, 3000), st.floats(0.3, 1.0))
def test_any_history_is_restored_exactly_and_sent_in_alternating_turns(messages, budget, ratio):
    projection = build_request(messages, budget=budget, keep_ratio=ratio, fixed_memory="rule")
    assert projection.restore(projection.messages) == messages
    roles = [m.role for m in projection.messages if m.role != "system"]
    assert roles[0] == roles[-1] == "user"
    assert all(a != b for a, b in pairwise(roles))
    again = build_request(messages, budget=budget, keep_ratio=ratio, fixed_memory="rule")
    assert [(m.role, m.content) for m in again.messages] == [
        (m.role, m.content) for m in projection.messages
    ]
    if projection.report.first_turn < projection.report.total_turns:
        assert projection.report.overrun == 0


def test_a_stored_cut_is_replaced_by_the_whole_history_and_keeps_what_came_later():
    loaded, sent = list("abcdef"), [*"ef", "now", "answer"]
    whole = [*loaded, "now", "answer"]
    assert repaired_history([*sent, "later"], sent, whole, loaded) == [*whole, "later"]


def test_a_conversation_nothing_was_saved_to_is_left_alone():
    loaded = ["u", "a"] * 20
    sent = ["u", "a"] * 2
    assert repaired_history(loaded, sent, [*loaded, "u"], loaded) is None


def test_a_whole_conversation_of_equal_turns_is_left_alone():
    loaded = ["u", "a"] * 20
    sent, whole = ["u", "a", "u"], [*loaded, "u"]
    assert repaired_history([*loaded, "u", "b"], sent, whole, loaded) is None


def test_a_conversation_that_was_reset_edited_or_deleted_stays_so():
    loaded, sent = list("abcdef"), ["e", "f", "now"]
    whole = [*loaded, "now"]
    for stored in ([], ["e", "edited", "now"], ["now"]):
        assert repaired_history(stored, sent, whole, loaded) is None


SHORT = ["e", "f", "now", "answer"]


@pytest.mark.parametrize(
    ("stored", "new"),
    [
        ([*SHORT, "later", "reply"], ["later", "reply"]),
        (["now", "answer", "later", "reply"], ["later", "reply"]),
        (["later", "reply"], ["later", "reply"]),
        (["summary", "seen", "now", "answer", "later", "reply"], ["later", "reply"]),
        (["later", "answer"], ["later", "answer"]),
    ],
)
def test_what_a_waiting_message_left_of_the_short_list_is_put_back_behind_the_whole(stored, new):
    loaded = list("abcdef")
    repaired = [*loaded, "now", "answer"]
    assert repaired_behind_short(stored, SHORT, repaired, loaded) == [*repaired, *new]


def test_a_whole_or_emptied_conversation_is_left_alone_after_a_waiting_message():
    loaded = list("abcdef")
    repaired = [*loaded, "now", "answer"]
    for stored in ([], repaired, [*loaded, "later", "reply"]):
        assert repaired_behind_short(stored, SHORT, repaired, loaded) is None


def test_a_list_that_was_saved_uncut_but_in_another_form_is_repaired():
    loaded, sent, whole = ["a", "b"], ["a", "b", ["q"], "r"], ["a", "b", "q", "r"]
    assert repaired_history([*sent, "later"], sent, whole, loaded) == [*whole, "later"]
    for stored in (loaded, whole, ["a", "b", "q"], [], ["a", ["q"], "r"]):
        assert repaired_history(stored, sent, whole, loaded) is None
    assert repaired_history(sent, sent, sent, loaded) is None
