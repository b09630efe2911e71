"""Which turns are sent: whole ones, within the budget, stable between cuts."""

from dataclasses import replace
from itertools import pairwise

import pytest

from .messages import Msg, assistant, build_request, call, image, size_of, texts, tool, turns, user


def sent_size(projection):
    return sum(size_of(m).tokens for m in projection.messages)


def test_everything_is_sent_by_reference_while_it_fits():
    messages = [*turns(5), user("now")]
    assert build_request(messages).messages == messages


def test_the_window_ends_at_the_newest_turn_and_starts_with_a_user_message():
    messages = [*turns(50), user("now")]
    projection = build_request(messages, budget=500)
    assert projection.messages == messages[-len(projection.messages) :]
    assert projection.messages[0].role == "user"
    assert sent_size(projection) <= 450


def test_a_cut_goes_down_to_the_low_mark_at_once():
    projection = build_request([*turns(100), user("now")], budget=1000, keep_ratio=0.5)
    assert projection.report.sections["window"] <= (900 - 3) * 0.5


def test_a_remembered_window_stays_while_it_fits_and_moves_when_it_does_not():
    messages = turns(100)
    projection = build_request([*messages, user("now")], budget=1000, keep_ratio=0.5)
    starts = []
    for _ in range(60):
        messages += turns(1)
        projection = build_request(
            [*messages, user("now")], budget=1000, keep_ratio=0.5, mark=projection.mark
        )
        starts.append(projection.mark.message_index)
    moves = sum(a != b for a, b in pairwise(starts))
    assert 1 <= moves <= 4


def test_a_ratio_of_one_refills_to_the_budget_on_every_request():
    messages = [*turns(100), user("now")]
    first = build_request(messages, budget=1000, keep_ratio=1.0)
    grown = [*messages[:-1], *turns(1), user("now")]
    second = build_request(grown, budget=1000, keep_ratio=1.0, mark=first.mark)
    assert second.mark.message_index == first.mark.message_index + 2


def test_the_window_is_chosen_anew_when_the_budget_changes():
    messages = [*turns(100), user("now")]
    mark = build_request(messages, budget=500).mark
    assert build_request(messages, budget=100_000, mark=mark).report.left_out_turns == 0


def test_the_window_is_chosen_anew_when_its_first_turn_was_edited():
    messages = [*turns(100), user("now")]
    mark = build_request(messages, budget=1000).mark
    edited = replace(mark, content_hash="something else")
    assert build_request(messages, budget=100_000, mark=edited).report.left_out_turns == 0


def test_the_hosts_own_limit_bounds_the_window_too():
    projection = build_request([*turns(100), user("now")], host_limit=200)
    assert sent_size(projection) <= 200


def test_a_current_message_larger_than_the_budget_is_sent_alone_and_the_overrun_reported():
    projection = build_request([*turns(5), user("x" * 5000)], budget=1024)
    assert len(projection.messages) == 1
    assert projection.report.overrun > 3900
    assert projection.report.left_out_turns == 5


def test_tool_schemas_count_in_the_budget():
    messages = [*turns(100), user("now")]
    without = build_request(messages, budget=2000)
    with_tools = build_request(messages, budget=2000, tool_tokens=1500)
    assert len(with_tools.messages) < len(without.messages)
    assert sent_size(with_tools) + 1500 <= 2000


def test_a_newest_turn_that_does_not_fit_is_shortened_in_the_middle():
    messages = [*turns(3), user("q" * 3000), assistant("a" * 3000), user("now")]
    projection = build_request(messages, budget=2000)
    assert projection.report.squeezed
    assert [m.role for m in projection.messages] == ["user", "assistant", "user"]
    assert "省略" in projection.messages[0].content
    assert messages[6].content == "q" * 3000


def big_turn():
    return [user("q" * 3000), assistant("a" * 3000)]


def squeezed_once(history, **options):
    """A request with little room: its newest turn is shortened."""
    projection = build_request([*history, user("w" * 1000)], budget=9000, **options)
    assert projection.report.squeezed
    return projection


@pytest.mark.parametrize("ratio", [0.7, 1.0])
@pytest.mark.parametrize("pinned", [0, 1])
def test_a_shortened_turn_keeps_its_bytes_when_more_room_comes_back(ratio, pinned):
    options = {"keep_ratio": ratio, "keep_first_turns": pinned}
    history = big_turn()
    first = squeezed_once(history, tool_tokens=3000, **options)
    history += [user("w" * 1000), assistant("done")]
    for _ in range(3):
        now = build_request([*history, user("now")], budget=9000, mark=first.mark, **options)
        assert texts(now.messages[:2]) == texts(first.messages[:2])
        history += turns(1)
        first = now


def test_a_shortened_turn_keeps_its_bytes_when_the_request_is_repeated_with_more_room():
    first = squeezed_once(big_turn(), tool_tokens=3000)
    again = build_request([*big_turn(), user("now")], budget=9000, mark=first.mark)
    assert texts(again.messages[:2]) == texts(first.messages[:2])
    assert again.report.squeezed and again.mark == first.mark


def test_a_shortened_turn_is_shortened_further_when_the_request_is_repeated_with_less_room():
    first = squeezed_once(big_turn(), tool_tokens=3000)
    less = squeezed_once(big_turn(), tool_tokens=5000, mark=first.mark)
    assert len(less.messages[0].content) < len(first.messages[0].content)
    more = build_request([*big_turn(), user("now")], budget=9000, mark=less.mark)
    assert texts(more.messages[:2]) == texts(less.messages[:2])


def test_pictures_of_a_shortened_turn_do_not_come_back():
    turn = [user([{"type": "text", "text": "q" * 6000}, image()]), assistant()]
    first = squeezed_once(turn, tool_tokens=3000)
    again = build_request([*turn, user("now")], budget=9000, mark=first.mark)
    assert again.messages[0].content.endswith("[图片]")


def test_a_shortened_turn_is_sent_whole_once_the_budget_was_raised():
    first = squeezed_once(big_turn(), tool_tokens=3000)
    raised = build_request([*big_turn(), user("now")], budget=90_000, mark=first.mark)
    assert len(raised.messages[0].content) == 3000 and not raised.mark.squeezed


def test_begin_dialogs_are_always_sent_and_not_counted_as_turns():
    dialogs = [Msg("user", "hi", _no_save=True), Msg("assistant", "ho", _no_save=True)]
    projection = build_request([*dialogs, *turns(100), user("now")], budget=500)
    assert projection.messages[:2] == dialogs
    assert projection.report.total_turns == 100


def test_messages_before_the_first_user_message_are_left_out_of_the_copy():
    messages = [assistant("hello"), tool("x"), *turns(2), user("now")]
    assert build_request(messages).messages == messages[2:]


def test_a_running_tool_loop_is_sent_whole_and_starts_with_its_user_message():
    running = [user("now"), assistant(None, tool_calls=call("1")), tool("1", "r" * 9000)]
    projection = build_request([*turns(5), *running], budget=1024)
    assert projection.messages == running


def test_old_pictures_become_placeholders_and_recent_ones_stay():
    messages = []
    for number in range(5):
        messages += [user([{"type": "text", "text": f"q{number}"}, image()]), assistant()]
    sent = build_request([*messages, user("now")], keep_media_turns=2).messages
    assert sent[0].content == "q0\n[图片]"
    assert sent[6] is messages[6]


def test_finished_tool_turns_become_plain_text():
    turn = [
        user("weather?"),
        assistant(None, tool_calls=call("1", "2", name="look", arguments='{"city":"广州"}')),
        tool("1", "sunny"),
        tool("2", "r" * 5000),
        assistant("It is sunny."),
    ]
    sent = build_request([*turn, user("now")]).messages
    assert [m.role for m in sent] == ["user", "assistant", "user"]
    text = sent[1].content
    assert "广州" in text and "sunny" in text and text.endswith("It is sunny.")
    assert len(text) < 2500


def test_reasoning_of_a_flattened_answer_is_dropped():
    thought = {"type": "think", "think": "secret plan"}
    turn = [
        user(),
        assistant([thought, {"type": "text", "text": "x"}], tool_calls=call("1")),
        tool("1"),
        assistant("done"),
    ]
    assert "secret plan" not in str(texts(build_request([*turn, user("now")]).messages))


def test_a_question_without_an_answer_gets_a_fixed_one():
    sent = build_request([user("lost"), user("now")]).messages
    assert texts(sent) == [("user", "lost"), ("assistant", "[无回复]"), ("user", "now")]


def test_lone_surrogates_are_never_sent_from_the_history():
    sent = build_request([user("a\ud800"), assistant("b\udfff"), user("now")]).messages
    assert texts(sent)[:2] == [("user", "a\ufffd"), ("assistant", "b\ufffd")]


def test_the_lightened_copy_of_a_turn_never_changes_again():
    history = [user("q"), assistant(None, tool_calls=call("1")), tool("1", "z" * 9000), assistant()]
    sent = set()
    for _ in range(5):
        history += turns(1)
        sent.add(build_request([*history, user("now")]).messages[1].content)
    assert len(sent) == 1


def test_a_cut_changes_no_message_of_the_host():
    messages = [
        user([{"type": "text", "text": "q"}, image()]),
        assistant("a"),
        *turns(60),
        user("now"),
    ]
    before = [(m.role, str(m.content)) for m in messages]
    build_request(messages, budget=1024, fixed_memory="x", summary="y")
    assert [(m.role, str(m.content)) for m in messages] == before
