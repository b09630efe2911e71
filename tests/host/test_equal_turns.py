"""A history of equal turns must not be taken for a saved cut by accident."""

import pytest

from dev.host_process import HostProcess

from .paths import Chat, Path, question_of, walk

TURN = [
    {"role": "user", "content": "the same question " * 30},
    {"role": "assistant", "content": "the same answer " * 30},
]


@pytest.mark.parametrize("channel", ["private", "group", "web_plain", "web_stream"])
def test_twenty_equal_turns_and_a_model_error_leave_no_duplicate(
    host: HostProcess, channel: str
) -> None:
    chat = Chat(host, channel)
    chat.seed(TURN * 20)
    path = Path(channel, "error")
    walk(chat, path, "lookup", with_plugin=True)
    [request] = host.model.requests(question_of(path, "lookup"))[-1:]
    assert len(request.messages) < 40
    stored = [m for m in chat.stored if m["role"] != "_checkpoint"]
    assert stored[:40] == TURN * 20
    assert [m["role"] for m in stored[40:]] in ([], ["user"])
