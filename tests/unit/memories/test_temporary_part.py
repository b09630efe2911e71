"""A part on the current message comes off again without a trace."""

import pytest
from astrbot.core.agent.message import ImageURLPart, Message, TextPart
from astrbot_plugin_context_manager.temporary_part import TemporaryPart

from ..messages import user

PICTURE = ImageURLPart(image_url=ImageURLPart.ImageURL(url="data:image/png;base64,AA"))


def beside(message):
    part = TextPart(text="memories").mark_as_temp()
    return TemporaryPart.beside(message, part, lambda text: TextPart(text=text))


@pytest.mark.parametrize(
    "content", ["hello", [TextPart(text="hello"), PICTURE]], ids=["text", "list"]
)
def test_a_part_stands_behind_the_text_and_comes_off_again(content):
    message = Message(role="user", content=content)
    before, original = message.model_dump(), message.content
    part = beside(message)
    assert message.content is original
    part.attach()
    assert message.content[-1] is part.part and message.content[0].text == "hello"
    assert part.attached
    plain = part.plain([message])
    assert plain[0] is not message and plain[0].model_dump() == before
    part.detach()
    part.detach()
    assert message.content is original and message.model_dump() == before
    assert part.plain([message]) == [message]


def test_only_a_text_is_saved_otherwise_while_the_part_is_on_it():
    text, parts = user("hello"), user([TextPart(text="hello")])
    for message, changes in ((text, True), (parts, False)):
        part = beside(message)
        assert not part.changes_saved_form
        part.attach()
        assert part.changes_saved_form is changes


def test_what_others_added_meanwhile_stays():
    message = Message(role="user", content="hello")
    part = beside(message)
    part.attach()
    more = TextPart(text="more")
    message.content = [*message.content, more]
    part.detach()
    assert [one.text for one in message.content] == ["hello", "more"]


def test_a_content_that_others_replaced_stays():
    message = Message(role="user", content="hello")
    part = beside(message)
    part.attach()
    message.content = "shortened"
    part.detach()
    assert message.content == "shortened" and not part.attached


def test_a_copy_without_the_part_keeps_what_belongs_to_the_message():
    message = Message(role="user", content="hello")
    message._checkpoint_after = "checkpoint"
    part = beside(message)
    part.attach()
    assert part.plain([message])[0]._checkpoint_after == "checkpoint"
