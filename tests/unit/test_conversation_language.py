"""A conversation's language is told by its first words, once and for all."""

import pytest
from astrbot_plugin_context_manager.conversation_language import language_of

from .messages import assistant, image, user

REMINDER = "<system_reminder>Current datetime: Monday, November the 30th</system_reminder>"


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("今天天气怎么样", "zh-CN"),
        ("Python 里的 list comprehension 怎么写", "zh-CN"),
        ("how do I write this", "en-US"),
        ("Où est la gare", "en-US"),
        (f"[User ID: 7, Nickname: 小明]\nhow do I write this{REMINDER}", "en-US"),
    ],
)
def test_the_first_message_tells(text, language):
    for otherwise in ("zh-CN", "en-US"):
        assert language_of([user(text)], otherwise) == language
        later = [user("什么 else would anybody say"), user("how do you do")]
        assert language_of([user(text), *later], otherwise) == language


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hi",
        "ok, thanks",
        "😀 12:30",
        "これは何ですか",
        "이게 뭐예요",
        REMINDER,
        "[Image Caption: a red house]",
        "https://example.com/a/long/path/to/somewhere",
        [image()],
        None,
    ],
)
def test_what_tells_nothing_leaves_it_to_the_next_message_and_the_settings(text):
    for otherwise in ("zh-CN", "en-US"):
        assert language_of([user(text), user("hi")], otherwise) == otherwise
    assert language_of([user(text), user("你好"), user("how do you do")], "en-US") == "zh-CN"
    assert language_of([user(text), user("how do you do")], "zh-CN") == "en-US"


def test_what_the_assistant_says_tells_nothing():
    assert language_of([assistant("How can I help you?"), user("你好")], "en-US") == "zh-CN"


def test_what_is_quoted_tells_nothing():
    quoted = {"type": "text", "text": "<Quoted Message>\n什么时候开会\n</Quoted Message>"}
    own = {"type": "text", "text": "please translate this for me"}
    assert language_of([user([own, quoted])], "zh-CN") == "en-US"


def test_stored_records_tell_the_same():
    stored = [{"role": "user", "content": [{"type": "text", "text": "how are you today"}]}]
    assert language_of(stored, "zh-CN") == "en-US"


def test_a_chat_without_words_is_not_read_to_its_end():
    def messages():
        for _ in range(1000):
            yield user([image()])
        raise AssertionError("read to the end")

    assert language_of(messages(), "zh-CN") == "zh-CN"
