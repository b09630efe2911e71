"""Search on real hosts: what was said is found again, and never in another chat."""

import pytest

from dev.host_process import HostProcess

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
    assert f"【翡翠鹦鹉】{host.port}" in answer and f"user{here.sender}" in answer
    for chat in (there, private):
        for words in ("翡翠鹦鹉", f"{here.origin} 翡翠鹦鹉", f"翡翠鹦鹉 session_id={here.origin}"):
            [answer] = chat.command(f"/search_history {words}")
            assert str(host.port) not in answer.replace(here.origin, "")
    assert secret in texts(history(host, session_id=here.origin, q="翡翠鹦鹉"))[0]
    assert history(host, session_id=there.origin, q="翡翠鹦鹉")["items"] == []
    everywhere = history(host, q=f"翡翠鹦鹉{host.port}")
    assert {item["session_id"] for item in everywhere["items"]} == {here.origin}


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
