"""Steps hold every message once, in order, and end between turns."""

import re

import pytest
from astrbot_plugin_context_manager.errors import CompressionRefused
from astrbot_plugin_context_manager.message_text import TranscriptMessage
from astrbot_plugin_context_manager.summary_plan import MIN_NEW_MESSAGES, reading, steps
from astrbot_plugin_context_manager.watermark import (
    Zones,
    covered_messages,
    prefix_hash,
    zones,
)

from ..messages import Msg
from .scripted_host import talk


class Mark:
    """What a summary says it covers."""

    def __init__(self, history, covered, conversation_id="c"):
        self.conversation_id = conversation_id
        self.covered = covered
        self.prefix_hash = prefix_hash(history[:covered])


def said(*texts):
    roles = ("user", "assistant")
    return [TranscriptMessage(n, roles[n % 2], text) for n, text in enumerate(texts)]


def texts_of(planned):
    return [[message.text for message in step] for step in planned]


# Steps


def test_what_fits_is_one_step():
    assert texts_of(steps(said("a", "b", "c", "d"), 1000, len)) == [["a", "b", "c", "d"]]


def test_nothing_is_no_step():
    assert steps([], 1000, len) == []


def test_steps_end_between_turns():
    planned = steps(said(*["x" * 42] * 6), 200, len)
    assert [[m.role for m in step] for step in planned] == [
        ["user", "assistant"] * 2,
        ["user", "assistant"],
    ]


def test_a_turn_that_is_too_long_is_split_between_its_messages():
    messages = [*said("q", "a" * 80), TranscriptMessage(2, "tool", "t" * 80)]
    assert [len(step) for step in steps(messages, 120, len)] == [2, 1]


def test_a_message_that_is_too_long_is_split_by_itself_without_losing_a_character():
    text = "".join(f"行{n}，" for n in range(500))
    planned = steps(said("q", text, "next", "a"), 200, len)
    pieces = [m.text for step in planned for m in step if m.text.startswith("(")]
    assert len(pieces) > 5
    assert all(len(piece) <= 200 for piece in pieces)
    assert "".join(re.sub(r"^\(\d+/\d+\) ", "", piece) for piece in pieces) == text
    assert planned[-1][-1].text == "a"


def test_a_long_message_is_cut_at_lines_before_words():
    text = "word word\n" * 100
    planned = steps(said(text), 200, len)
    assert all(step[0].text.endswith("\n") for step in planned)


def test_a_cut_never_splits_an_emoji():
    family = "👨\u200d👩\u200d👧"
    planned = steps(said(family * 200), 120, len)
    whole = [re.sub(r"^\(\d+/\d+\) ", "", m.text) for step in planned for m in step]
    assert len(whole) > 3
    assert all(piece.replace(family, "") == "" for piece in whole)


def test_a_text_of_one_character_above_the_room_ends():
    assert steps(said("xx"), 1, lambda text: 50 * len(text))


def test_every_mark_of_a_long_history_is_in_exactly_one_step():
    messages = said(*[f"<m{n}> " + "word " * (n % 90) for n in range(2000)])
    planned = steps(messages, 300, len)
    found = re.findall(r"<m(\d+)>", " ".join(m.text for step in planned for m in step))
    assert found == [str(n) for n in range(2000)]


# What is read


def test_without_a_summary_everything_is_read():
    history = talk(6)
    read = reading("c", history, None)
    assert (len(read.messages), read.covered) == (6, 6)
    assert read.prefix_hash == prefix_hash(history)


def test_only_what_came_after_the_watermark_is_read():
    history = talk(10)
    read = reading("c", history, Mark(history, 6))
    assert [m.text for m in read.messages] == ["<m6>", "<m7>", "<m8>", "<m9>"]
    assert read.covered == 10 and read.prefix_hash == prefix_hash(history)


@pytest.mark.parametrize(
    "change",
    [
        lambda history: [{"role": "user", "content": "edited"}, *history[1:]],
        lambda history: history[2:],
        lambda history: history[:5],
    ],
)
def test_a_prefix_that_was_edited_or_cut_counts_for_nothing(change):
    history = talk(10)
    mark = Mark(history, 6)
    changed = change(history)
    assert covered_messages(mark, "c", changed) == 0
    assert len(reading("c", changed, mark).messages) == len(changed)


def test_another_conversation_counts_for_nothing():
    history = talk(10)
    assert covered_messages(Mark(history, 6, "old"), "c", history) == 0
    assert len(reading("c", history, Mark(history, 6, "old")).messages) == 10


@pytest.mark.parametrize("new", range(MIN_NEW_MESSAGES))
def test_fewer_than_two_new_turns_are_refused_with_their_number(new):
    history = talk(6 + new)
    with pytest.raises(CompressionRefused) as raised:
        reading("c", history, Mark(history, 6))
    assert raised.value.reason_key == "too_few_new"
    assert raised.value.params == {"count": new, "least": MIN_NEW_MESSAGES}


def test_two_new_turns_are_enough():
    history = talk(6 + MIN_NEW_MESSAGES)
    assert len(reading("c", history, Mark(history, 6)).messages) == MIN_NEW_MESSAGES


def test_a_first_summary_may_be_of_one_message():
    assert len(reading("c", talk(1), None).messages) == 1


def test_a_rebuild_reads_everything_again():
    history = talk(6)
    assert len(reading("c", history, Mark(history, 6), rebuild=True).messages) == 6


def test_a_bound_ends_what_is_read_and_what_counts_as_covered():
    history = talk(10)
    read = reading("c", history, Mark(history, 2), until=7)
    assert [m.text for m in read.messages] == [f"<m{n}>" for n in range(2, 7)]
    assert read.covered == 7 and read.prefix_hash == prefix_hash(history[:7])


def test_checkpoints_are_neither_read_nor_counted():
    history = talk(4)
    with_checkpoint = [*history[:2], {"role": "_checkpoint", "content": {"id": "x"}}, *history[2:]]
    assert covered_messages(Mark(history, 4), "c", with_checkpoint) == 4
    assert reading("c", with_checkpoint, None).covered == 4


def test_the_hash_is_the_same_for_stored_records_and_the_hosts_objects():
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    stored = [
        {"role": "user", "content": [{"type": "text", "text": "q\ud800"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "r", "tool_call_id": "1"},
        {"role": "assistant", "content": "a"},
    ]
    objects = [
        Msg("user", [{"type": "text", "text": "q\ud800"}]),
        Msg("assistant", [], tool_calls=[call]),
        Msg("tool", "r", tool_call_id="1"),
        Msg("assistant", [{"type": "think", "think": "hm"}, {"type": "text", "text": "a"}]),
    ]
    assert prefix_hash(stored) == prefix_hash(objects)


@pytest.mark.parametrize(
    "other",
    [
        {"role": "assistant", "content": "q"},
        {"role": "user", "content": "Q"},
        {"role": "user", "content": ["q", ""]},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]},
        {"role": "user", "content": "q", "tool_call_id": "1"},
    ],
)
def test_any_other_content_has_another_hash(other):
    same = other["content"] == ["q", ""]
    assert (prefix_hash([{"role": "user", "content": "q"}]) == prefix_hash([other])) is same


# Zones


@pytest.mark.parametrize(
    ("total", "covered", "window_start", "first_end", "expected"),
    [
        (100, 0, 0, 0, Zones(100, 100, 0, 0)),
        (100, 0, 60, 0, Zones(100, 40, 0, 60)),
        (100, 40, 60, 0, Zones(100, 40, 40, 20)),
        (100, 80, 60, 0, Zones(100, 40, 60, 0)),
        (100, 40, 60, 10, Zones(100, 50, 30, 20)),
        (100, 5, 60, 10, Zones(100, 50, 0, 50)),
        (100, 100, 100, 0, Zones(100, 0, 100, 0)),
        (10, 10, 4, 8, Zones(10, 10, 0, 0)),
    ],
)
def test_every_message_is_in_exactly_one_zone(total, covered, window_start, first_end, expected):
    found = zones(total, covered, window_start, first_end)
    assert found == expected
    assert found.total == found.sent + found.covered + found.left_out
