"""First turns that stay, covered turns that leave, new topics, and media that get lighter."""

from dataclasses import replace

import pytest
from astrbot_plugin_context_manager.context_logic import TopicMark, topic_mark

from .messages import assistant, build_request, image, turns, user


def picture(size):
    return image("data:image/png;base64," + "A" * size)


def picture_turn(number, size=1000):
    return [user([{"type": "text", "text": f"p{number}"}, picture(size)]), assistant(f"a{number}")]


def opening(projection):
    """The texts of the user messages before the current one."""
    return [m.content for m in projection.messages[:-1] if m.role == "user"]


def numbers(projection):
    return [int(text[1:5]) for text in opening(projection)]


# First turns


def test_pinned_first_turns_stand_before_the_window_and_the_rest_is_left_out():
    projection = build_request([*turns(100), user("now")], budget=1000, keep_first_turns=2)
    sent = numbers(projection)
    assert sent[:2] == [0, 1] and sent[2] > 50
    assert sent[2:] == list(range(sent[2], 100))
    report = projection.report
    assert (report.first_turn, report.left_out_turns) == (sent[2], sent[2] - 2)
    assert report.left_out == (4, 2 * sent[2])


def test_pinned_turns_count_in_the_budget():
    plain = build_request([*turns(100, 40), user("now")], budget=1000)
    pinned = build_request([*turns(100, 40), user("now")], budget=1000, keep_first_turns=3)
    assert pinned.report.estimated <= 1000 - 100
    assert pinned.report.first_turn > plain.report.first_turn


def test_pinned_turns_may_take_a_third_of_the_budget_and_no_more():
    messages = [user("q" * 300), assistant("a" * 10), *turns(100), user("now")]
    kept = build_request(messages, budget=1000, keep_first_turns=2)
    assert opening(kept)[:2] == ["q" * 300, "q0000xxxxx"]
    messages[0] = user("q" * 400)
    assert len(opening(build_request(messages, budget=1000, keep_first_turns=2))[0]) == 10


@pytest.mark.parametrize("limit", ["budget", "model_limit", "host_limit"])
def test_pinned_turns_leave_two_thirds_to_recent_ones_whatever_sets_the_limit(limit):
    messages = [*turns(3, 150), *turns(50), user("now")]
    options = {"budget": 100_000, "keep_first_turns": 3} | {limit: 1000}
    assert len(numbers(build_request(messages, **options))) > 20


def test_nothing_is_left_out_where_pinned_turns_and_window_meet():
    messages = [*turns(5), user("now")]
    projection = build_request(messages, keep_first_turns=3)
    assert projection.messages == messages
    assert (projection.report.first_turn, projection.report.left_out_turns) == (0, 0)
    assert not projection.changed_history


def test_pinned_turns_stay_after_a_new_topic():
    history = turns(10)
    projection = build_request(
        [*history, *turns(1), user("now")], keep_first_turns=1, topic=topic_mark(history)
    )
    assert numbers(projection) == [0, 0]
    assert projection.report.left_out_turns == 9


# Three zones


def test_covered_turns_leave_but_for_a_tail():
    messages = [*turns(50), user("now")]
    projection = build_request(messages, tail_tokens=60, covered=100)
    assert numbers(projection) == list(range(47, 50))
    assert projection.report.reason == "summary"


def test_the_tail_is_counted_from_the_newest_turn():
    messages = [*turns(50), user("now")]
    assert numbers(build_request(messages, tail_tokens=60, covered=98)) == [47, 48, 49]
    assert numbers(build_request(messages, tail_tokens=60, covered=80)) == list(range(40, 50))


@pytest.mark.parametrize(
    ("tail", "before"), [(0, 0), (1, 20), (59, 16), (60, 14), (199, 2), (200, 0), (10_000, 0)]
)
def test_a_request_tells_how_much_stands_before_the_tail(tail, before):
    messages = [*turns(10), user("now")]
    assert build_request(messages, tail_tokens=tail).report.before_tail == before


@pytest.mark.parametrize("tail", [1, 60, 500])
def test_what_is_compressed_up_to_the_tail_leaves_exactly_the_tail(tail):
    messages = [*turns(50), user("now")]
    before = build_request(messages, tail_tokens=tail).report.before_tail
    projection = build_request(messages, tail_tokens=tail, covered=before)
    # The newest turn stays whatever its size.
    assert projection.report.left_out == (0, min(before, 98))


@pytest.mark.parametrize("options", [{"covered": 80}, {"tail_tokens": 60}])
def test_without_a_tail_or_a_covered_part_the_window_is_by_budget_alone(options):
    messages = [*turns(50), user("now")]
    assert build_request(messages, **options).messages == messages


def test_a_turn_that_is_covered_in_part_stays():
    projection = build_request([*turns(50), user("now")], tail_tokens=1, covered=81)
    assert numbers(projection)[0] == 40


def test_the_newest_turn_stays_even_if_all_of_it_is_covered():
    projection = build_request([*turns(50), user("now")], tail_tokens=1, covered=100)
    assert numbers(projection) == [49]


@pytest.mark.parametrize("keep_ratio", [0.7, 1.0])
def test_the_start_stays_while_uncovered_messages_are_added(keep_ratio):
    options = {"tail_tokens": 60, "covered": 100, "keep_ratio": keep_ratio}
    messages, mark, starts = turns(50), None, []
    for _ in range(20):
        projection = build_request([*messages, user("now")], mark=mark, **options)
        mark = projection.mark
        starts.append(mark.message_index)
        assert projection.report.reason == "summary"
        messages += turns(1)
    assert set(starts) == {94}


def test_a_window_that_refills_grows_back_to_the_tail_after_a_large_message():
    options = {"tail_tokens": 200, "covered": 100, "keep_ratio": 1.0, "budget": 1000}
    small = build_request([*turns(50), user("now")], **options)
    large = build_request([*turns(50), user("n" * 800)], mark=small.mark, **options)
    again = build_request([*turns(50), user("now")], mark=large.mark, **options)
    assert large.mark.message_index > small.mark.message_index
    assert again.mark == small.mark


def test_the_window_is_chosen_anew_when_more_is_covered():
    messages = [*turns(50), user("now")]
    mark = build_request(messages, tail_tokens=60, covered=80).mark
    later = build_request(messages, tail_tokens=60, covered=90, mark=mark)
    assert numbers(later)[0] == 45


def test_the_budget_still_cuts_inside_the_zones():
    projection = build_request([*turns(90), user("now")], budget=500, tail_tokens=100, covered=20)
    assert numbers(projection)[0] > 60
    assert projection.report.reason == ""


# New topics


def test_a_new_topic_leaves_older_turns_out_and_deletes_nothing():
    history = turns(10)
    messages = [*history, *turns(2), user("now")]
    projection = build_request(messages, topic=topic_mark(history))
    assert projection.messages == messages[20:]
    assert projection.report.reason == "topic"
    assert projection.restore([*projection.messages, assistant("new")])[:25] == messages


def test_right_after_the_mark_only_the_current_message_is_sent():
    history = turns(10)
    projection = build_request([*history, user("now")], topic=topic_mark(history))
    assert len(projection.messages) == 1
    assert projection.report.left_out_turns == 10 and not projection.report.squeezed


def test_taking_the_mark_back_brings_the_older_turns_back():
    history = turns(10)
    messages = [*history, *turns(2), user("now")]
    mark = build_request(messages, topic=topic_mark(history)).mark
    assert build_request(messages, mark=mark).messages == messages


@pytest.mark.parametrize("length", [0, 4, 19, 21, 30])
def test_a_history_that_was_cleared_or_edited_has_no_new_topic(length):
    mark = topic_mark(turns(10))
    messages = [*turns(length // 2), *([user("half")] if length % 2 else []), user("now")]
    edited = replace(mark, content_hash="something else")
    for topic in (mark, edited) if length < 20 else (edited,):
        assert build_request(messages, topic=topic).report.left_out_turns == 0


def test_an_empty_history_begins_no_topic():
    assert topic_mark([]) is None
    assert build_request([user("now")], topic=TopicMark(0, "")).messages


# Media


def test_media_over_the_byte_limit_go_even_if_they_are_recent():
    messages = [*picture_turn(1), *picture_turn(2), *picture_turn(3), user("now")]
    kept = build_request(messages, keep_media_bytes=4000).messages
    assert kept == messages
    sent = build_request(messages, keep_media_bytes=2500).messages
    assert opening_texts(sent) == ["p1\n[图片]", "p2\n[图片]", None]


def opening_texts(messages):
    return [
        m.content if isinstance(m.content, str) else None for m in messages[:-1] if m.role == "user"
    ]


def test_pictures_of_the_current_message_count_but_are_always_sent():
    current = user([{"type": "text", "text": "now"}, picture(3000)])
    messages = [*picture_turn(1), current]
    sent = build_request(messages, keep_media_bytes=2500).messages
    assert opening_texts(sent) == ["p1\n[图片]"]
    assert sent[-1] is current


def test_media_once_dropped_for_their_size_stay_dropped():
    messages = [*picture_turn(1), *picture_turn(2), *picture_turn(3), user("now")]
    projection = build_request(messages, keep_media_bytes=2500)
    later = [*messages[:-1], *turns(1), user("now")]
    again = build_request(later, keep_media_bytes=4000, mark=projection.mark)
    assert opening_texts(again.messages)[:2] == ["p1\n[图片]", "p2\n[图片]"]


def test_the_window_is_remembered_without_a_write_while_only_time_passes():
    history, marks = turns(3), set()
    mark = None
    for number in range(6):
        history += picture_turn(number)
        mark = build_request([*history, user("now")], mark=mark).mark
        marks.add(mark)
    assert len(marks) == 1


def test_a_message_once_lightened_keeps_its_bytes_for_good():
    history, seen, mark = [], {}, None
    for number in range(30):
        history += picture_turn(number, size=700) if number % 2 else turns(1, 60)
        projection = build_request(
            [*history, user("now")], budget=2000, keep_media_bytes=1500, mark=mark
        )
        mark = projection.mark or mark
        for message in projection.messages[:-1]:
            if isinstance(message.content, str) and "[图片]" in message.content:
                seen.setdefault(message.content[:4], set()).add(message.content)
            elif isinstance(message.content, list):
                assert f"{message.content[0]['text']}\n[图"[:4] not in seen
    assert len(seen) > 5 and all(len(texts) == 1 for texts in seen.values())


# Sections


def test_sections_larger_than_the_budget_never_push_out_the_current_message():
    current = user("now")
    projection = build_request(
        [*turns(5), current], budget=1024, fixed_memory="f" * 5000, summary="s" * 5000
    )
    assert projection.messages[-1] is current
    assert projection.report.overrun > 0 and projection.report.left_out_turns == 5
