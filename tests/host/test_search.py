"""Search on real hosts: what was said is found again, and never in another chat."""

import json
import random

import pytest

from dev.host_process import HostProcess
from dev.script import text_of
from dev.scripted_model import RecordedRequest

from .sessions import Session, our_lines, wait_until

# Searches that must neither fail nor be read as anything but words.
HOSTILE = ["", " ", '"', "*", "%", "_", "AND", "NEAR(", "' OR 1=1 --", "^", "x" * 1999, "{query}"]


def history(host: HostProcess, **query: object) -> dict:
    """The answer of the page's search."""
    status, answer = host.web.api("GET", "history", **query)
    assert status == 200, answer
    return answer


def texts(answer: dict) -> list[str]:
    return [item["text"] for item in answer["items"]]


def talking(host: HostProcess, channel: str, text: str) -> Session:
    """A chat in which something was said that is archived by now."""
    chat = Session(host, channel)
    chat.say(text)
    wait_until(lambda: history(host, session_id=chat.origin)["total"] >= 2, "the archived messages")
    return chat


def test_what_was_said_in_a_group_is_found_there_and_in_no_other_chat(host: HostProcess) -> None:
    secret = f"暗号是翡翠鹦鹉{host.port}"
    here = talking(host, "group", secret)
    there = talking(host, "group", "今天天气不错")
    private = talking(host, "private", "早上好")
    [answer] = here.command("/搜索历史 翡翠鹦鹉")
    assert f"【翡翠鹦鹉】{host.port}" in answer and f"user{here.number}" in answer
    for chat in (there, private):
        for words in ("翡翠鹦鹉", f"{here.origin} 翡翠鹦鹉", f"翡翠鹦鹉 session_id={here.origin}"):
            [answer] = chat.command(f"/search_history {words}")
            assert str(host.port) not in answer.replace(here.origin, "")
    assert secret in texts(history(host, session_id=here.origin, q="翡翠鹦鹉"))[0]
    assert history(host, session_id=there.origin, q="翡翠鹦鹉")["items"] == []
    everywhere = history(host, q=f"翡翠鹦鹉{host.port}")
    assert everywhere["items"][0]["session_id"] == here.origin


def test_a_hit_carries_what_the_page_needs_to_go_there(host: HostProcess) -> None:
    chat = talking(host, "web", "把紫罗兰色的方案发给陈晨")
    [hit] = history(host, session_id=chat.origin, q="紫罗兰", role="user")["items"]
    assert hit["snippet"] == "把⟪紫罗兰⟫色的方案发给陈晨"
    assert (hit["seq"], hit["role"], hit["in_host"]) == (0, "user", True)
    assert hit["conversation_id"] and "title" in hit
    around = history(
        host,
        session_id=chat.origin,
        conversation_id=hit["conversation_id"],
        around=hit["id"],
    )
    assert hit["id"] in [item["id"] for item in around["items"]]
    for query in ({"until": 1000}, {"since": 4102444800}, {"role": "tool"}):
        assert history(host, session_id=chat.origin, q="紫罗兰", **query)["total"] == 0


# The tool


def call_tool(chat: Session, arguments: object) -> str:
    """Makes the model search; returns what the tool answered."""
    before = len(chat.host.model.requests())
    chat.say(f"look it up, {chat.number} #tool:search_history #args:{json.dumps(arguments)}")
    results = [
        text_of(request.messages[-1])
        for request in chat.host.model.requests()[before:]
        if request.messages[-1].get("role") == "tool"
    ]
    assert results, chat.host.log()[-3000:]
    return results[-1]


def offered(request: RecordedRequest) -> bool:
    return "search_history" in {tool["function"]["name"] for tool in request.body["tools"]}


def test_the_tool_is_offered_only_where_it_is_on_and_finds_what_was_said(
    host: HostProcess,
) -> None:
    off = talking(host, "private", "我的车停在琥珀车库")
    on = talking(host, "private", "我的车停在珊瑚车库")
    assert on.change(search_tool_enabled=True)[0] == 200
    assert offered(on.ask(f"在吗 {on.number}")) and not offered(off.ask(f"在吗 {off.number}"))
    assert "珊瑚车库" in call_tool(on, {"query": "车停在哪个车库"})
    assert "琥珀" not in call_tool(off, {"query": "车停在哪个车库"})
    assert on.change(search_tool_enabled=False)[0] == 200
    assert not offered(on.ask(f"还在吗 {on.number}"))
    assert "珊瑚" not in call_tool(on, {"query": "车停在哪个车库"})


def arguments(owner: Session) -> list[dict]:
    """Arguments by which a model may try to reach another chat."""
    fixed = [
        {"query": "翡翠", "session_id": owner.origin},
        {"query": "翡翠", "umo": owner.origin, "unified_msg_origin": owner.origin},
        {"query": "翡翠", "scope": None, "session": "*", "all": True},
        {"query": f'翡翠" OR session_id = "{owner.origin}'},
        {"query": f"翡翠' OR session_id = '{owner.origin}' --"},
        {"query": ["翡翠", {"session_id": owner.origin}]},
        {"query": {"text": "翡翠"}},
        {"query": None, "event": owner.origin},
        {"query": "%", "limit": "all"},
        {"query": "翡翠", "limit": 10**9},
        {},
    ]
    draw = random.Random(48)
    values = [
        "翡翠",
        owner.origin,
        None,
        True,
        -1,
        1e9,
        [],
        {},
        "%",
        '"',
        "\u0000",
        "翡翠 NEAR(",
        "*",
    ]
    names = ["query", "limit", "session_id", "event", "self", "context", "role", "since", "kwargs"]
    return fixed + [
        {name: draw.choice(values) for name in draw.sample(names, draw.randint(1, 4))}
        for _ in range(20)
    ]


def test_another_chats_messages_are_out_of_reach_whatever_a_model_sends(host: HostProcess) -> None:
    secret = f"藏宝图在翡翠塔{host.port}"
    owner = talking(host, "group", secret)
    stranger = talking(host, "group", "这里什么都没有")
    assert stranger.change(search_tool_enabled=True)[0] == 200
    for sent in arguments(owner):
        assert secret not in call_tool(stranger, sent), sent
    assert secret not in stranger.raw
    assert our_lines(host.log(), "ERRO") == []


@pytest.mark.parametrize("text", HOSTILE)
def test_any_search_is_answered(host: HostProcess, chat: Session, text: str) -> None:
    history(host, session_id=chat.origin, q=text)
    history(host, q=text)
    assert len(chat.command(f"/搜索历史 {text}")) == 1
    assert our_lines(host.log(), "ERRO") == []


@pytest.fixture(scope="module")
def _chats() -> dict[int, Session]:
    return {}


@pytest.fixture
def chat(host: HostProcess, _chats: dict[int, Session]) -> Session:
    """One chat of each host that has said something."""
    if host.port not in _chats:
        _chats[host.port] = talking(host, "private", "一句可以找到的话")
    return _chats[host.port]
