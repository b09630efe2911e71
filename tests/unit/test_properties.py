"""Random conversations: what is sent is valid and fits, and the way back is exact."""

import json
from itertools import pairwise

from astrbot_plugin_context_manager.context_logic import topic_mark
from hypothesis import given, settings
from hypothesis import strategies as st

from dev.message_rules import violations

from .messages import Msg, assistant, build_request, call, image, size_of, tool, user

WORDS = st.text(st.sampled_from("ab 字,。\n=-🙂\u0301"), max_size=80)
KINDS = ["plain", "plain", "tool", "long_tool", "picture", "silent", "parts", "orphan", "empty"]


@st.composite
def turn(draw, number):
    kind, text = draw(st.sampled_from(KINDS)), draw(WORDS) + f"#{number}"
    if kind == "picture":
        opening = user([{"type": "text", "text": text}, image("data:," + "A" * 300)])
    else:
        opening = user("" if kind == "empty" else text)
    answers = [assistant(text)]
    if kind in ("tool", "long_tool"):
        result = "r" * (4000 if kind == "long_tool" else 20)
        answers = [
            assistant(None, tool_calls=call(f"c{number}")),
            tool(f"c{number}", result),
            *answers,
        ]
    elif kind == "orphan":
        answers = [tool("nobody", text)]
    elif kind == "parts":
        answers = [assistant([{"type": "text", "text": text}, {"type": "think", "think": "x"}])]
    elif kind == "silent":
        answers = []
    return [opening, *answers]


@st.composite
def conversations(draw, most=25):
    return [draw(turn(number)) for number in range(draw(st.integers(0, most)))]


OPTIONS = st.fixed_dictionaries(
    {
        "budget": st.integers(1024, 4000),
        "keep_ratio": st.floats(0.3, 1.0),
        "keep_media_turns": st.integers(0, 4),
        "keep_media_bytes": st.sampled_from([0, 500, 1000, 1 << 20]),
        "keep_first_turns": st.integers(0, 3),
        "tail_tokens": st.sampled_from([0, 1, 200]),
        "covered": st.integers(0, 60),
    }
)


def flat(turns):
    return [message for turn in turns for message in turn]


def request(turns, current=None):
    dialogs = [Msg("user", "begin", _no_save=True), Msg("assistant", "yes", _no_save=True)]
    return [Msg("system", "prompt"), *dialogs, *flat(turns), current or user("the current message")]


def plain(message):
    """A message as it goes over the wire; think parts are the provider's business."""
    content = message.content
    if isinstance(content, list):
        content = [part for part in content if part["type"] != "think"]
    names = ("tool_calls", "tool_call_id")
    more = {name: getattr(message, name) for name in names if getattr(message, name)}
    return {"role": message.role, "content": content, **more}


def sent_bytes(projection):
    return json.dumps([plain(message) for message in projection.messages])


@settings(max_examples=200, deadline=None)
@given(conversations(), OPTIONS, st.booleans())
def test_what_is_sent_is_valid_and_within_the_budget(turns, options, with_topic):
    topic = topic_mark(flat(turns[: len(turns) // 2])) if with_topic else None
    projection = build_request(request(turns), topic=topic, fixed_memory="rule", **options)
    assert violations([plain(message) for message in projection.messages]) == []
    total = sum(size_of(message).tokens for message in projection.messages)
    assert total <= options["budget"] and projection.report.overrun == 0
    assert projection.messages[-1].content == "the current message"


@settings(max_examples=200, deadline=None)
@given(conversations(), OPTIONS, st.data())
def test_the_way_back_is_exact_whatever_the_host_did_to_the_list(turns, options, data):
    messages = request(turns)
    projection = build_request(messages, **options)
    added = [assistant(None, tool_calls=call("n")), tool("n"), assistant("the answer")]
    sent = list(projection.messages)
    dropped = data.draw(st.sets(st.integers(0, max(0, len(sent) - 1)), max_size=len(sent)))
    final = [m for i, m in enumerate(sent) if i not in dropped] + added
    restored = projection.restore(final)
    assert restored == [*messages, *added]
    assert projection.restore(restored) == restored
    assert projection.restore(projection.messages) == messages


@settings(max_examples=150, deadline=None)
@given(conversations(), st.integers(1024, 4000))
def test_building_what_was_built_changes_nothing(turns, budget):
    once = build_request(request(turns), budget=budget)
    twice = build_request(once.messages, budget=budget)
    assert sent_bytes(twice) == sent_bytes(once)
    assert all(a is b for a, b in zip(once.messages, twice.messages, strict=True))


def replay(turns, options, restart_at=None):
    """The bytes of every request of a conversation, one after each turn."""
    mark, sent = None, []
    for number in range(len(turns)):
        history = turns[:number] if number != restart_at else list(map(list, turns[:number]))
        current = turns[number][0] if turns[number][0].content else user("something")
        projection = build_request(request(history, current), mark=mark, **options)
        mark = projection.mark or mark
        sent.append(projection)
    return sent


ROOM = st.fixed_dictionaries(
    {
        "margin": st.sampled_from([0.03, 0.4]),
        "tool_tokens": st.sampled_from([0, 800]),
        "model_limit": st.sampled_from([None, 3000]),
    }
)
SIZES = st.sampled_from([20, 300, 2500, 6000])
# Size of question and answer, what else the request holds, and whether it failed.
REQUESTS = st.lists(st.tuples(SIZES, SIZES, ROOM, st.booleans()), max_size=12)


@settings(max_examples=200, deadline=None)
@given(REQUESTS, st.sampled_from([0.5, 0.7, 1.0]), st.integers(0, 2))
def test_a_message_once_shortened_never_becomes_longer_again(requests, ratio, first_turns):
    options = {"budget": 4000, "keep_ratio": ratio, "keep_first_turns": first_turns}
    turns, mark, whole, shortened = [], None, set(), {}
    for number, (question, answer, room, failed) in enumerate(requests):
        current = user(f"q{number}:" + "x" * question)
        projection = build_request(request(turns, current), mark=mark, **options, **room)
        mark = projection.mark or mark
        for message in projection.messages[3:-1]:
            name, text = message.content.split(":")[0], message.content
            if text not in whole or name in shortened:
                assert len(text) <= len(shortened.get(name, text))
                shortened[name] = text
        if not failed:
            turns = [*turns, [current, assistant(f"a{number}:" + "y" * answer)]]
            whole.update(message.content for message in turns[-1])


@settings(max_examples=60, deadline=None)
@given(conversations(), OPTIONS)
def test_a_replay_sends_the_same_bytes(turns, options):
    once, again = replay(turns, options), replay(turns, options, restart_at=len(turns) // 2)
    assert list(map(sent_bytes, once)) == list(map(sent_bytes, again))


@st.composite
def plain_conversations(draw):
    count = draw(st.integers(15, 40))
    return [[user(draw(WORDS) + f"q{n}"), assistant(draw(WORDS) + f"a{n}")] for n in range(count)]


@settings(max_examples=25, deadline=None)
@given(plain_conversations(), st.integers(1024, 2000), st.integers(0, 2))
def test_the_sent_prefix_changes_only_when_the_window_is_cut(turns, budget, first):
    sent = replay(turns, {"budget": budget, "keep_first_turns": first})
    for before, now in pairwise(sent):
        if not now.report.cut:
            assert now.messages[3 : len(before.messages)] == before.messages[3:]
