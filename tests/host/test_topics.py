"""New topics: by command, and by themselves in groups."""

from dev.host_process import HostProcess

from .histories import mixed_history
from .sessions import Session, our_lines, wait_until

OLD = mixed_history(6, 200)


def _seen(host: HostProcess) -> int:
    return host.web.api("GET", "health")[1]["counters"].get("group_messages", 0)


def _chatter(host: HostProcess, group: int, count: int) -> None:
    before = _seen(host)
    for number in range(count):
        host.qq.send_group(group, 77, f"between us {number}", at=False)
    wait_until(lambda: _seen(host) >= before + count, "the plugin to count them")


def _idle_group(host: HostProcess, limit: int) -> Session:
    chat = Session(host, "group", topic_idle_messages=limit)
    chat.seed(OLD)
    chat.ask(f"a first question in {chat.number}")
    return chat


def test_enough_messages_that_do_not_address_the_bot_begin_a_new_topic(host: HostProcess) -> None:
    chat = _idle_group(host, 3)
    _chatter(host, chat.number, 3)
    request = chat.ask(f"something else in {chat.number}")
    assert "a first question" not in request.dump()
    assert chat.stored[: len(OLD)] == OLD


def test_too_few_messages_between_keep_the_topic(host: HostProcess) -> None:
    chat = _idle_group(host, 4)
    _chatter(host, chat.number, 3)
    request = chat.ask(f"more of the same in {chat.number}")
    assert "a first question" in request.dump()


def test_a_new_topic_by_command_leaves_older_turns_out_until_it_is_undone(
    host: HostProcess,
) -> None:
    chat = Session(host)
    chat.seed(OLD)
    chat.ask(f"a first question in {chat.number}")
    assert len(chat.command("/新话题")) == 1
    assert "a first question" not in chat.ask(f"a second one in {chat.number}").dump()
    assert len(chat.command("/new_topic undo")) == 1
    request = chat.ask(f"a third one in {chat.number}")
    assert "a first question" in request.dump() and "a second one" in request.dump()
    assert chat.stored[: len(OLD)] == OLD


def test_a_command_and_its_word_may_stand_apart_by_any_blank(host: HostProcess) -> None:
    chat = Session(host)
    chat.seed(OLD)
    chat.ask(f"a first question in {chat.number}")
    for blank in ("\u3000", "\n", "  "):
        chat.command("/新话题")
        chat.command(f"/新话题{blank}撤销")
        assert "a first question" in chat.ask(f"question {ord(blank[-1])} in {chat.number}").dump()


def test_a_new_topic_without_anything_before_it_says_so(host: HostProcess) -> None:
    chat = Session(host)
    assert len(chat.command("/新话题")) == 1
    assert our_lines(host.log(), "ERRO") == []
