"""What a request's current message carries for the model alone.

Pure: messages and parts are the host's, or anything with the same fields. Invariants:

* The message object stays the same object; only its content is another list meanwhile.
* What the host would save of the message without the part is known at any time.
* Taking the part out twice is the same as taking it out once, and whatever somebody
  else did to the content meanwhile stays.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .message_text import part_text


@dataclass(slots=True, eq=False)
class TemporaryPart:
    """A part behind the text of a message.

    Attributes:
        message: The message.
        part: The part; the host does not save it.
        original: The content without it, a text or a list.
        content: The content with it.
    """

    message: Any
    part: Any
    original: Any
    content: list[Any]

    @classmethod
    def beside(cls, message: Any, part: Any, text_part: Any) -> "TemporaryPart":
        """Prepares a part; nothing changes before ``attach``.

        Args:
            message: The current message.
            part: The part to add.
            text_part: Makes a part of a text, for a content that is one text.
        """
        original = message.content
        parts = [text_part(original)] if isinstance(original, str) else list(original or [])
        return cls(message, part, original, [*parts, part])

    @property
    def attached(self) -> bool:
        """Whether the message carries the part now."""
        content = self.message.content
        return isinstance(content, list) and any(one is self.part for one in content)

    @property
    def changes_saved_form(self) -> bool:
        """Whether the host would save the message otherwise while the part is on it."""
        return self.attached and isinstance(self.original, str)

    def attach(self) -> None:
        """Puts the part on the message."""
        self.message.content = self.content

    def detach(self) -> None:
        """Takes the part off the message."""
        if self.attached:
            self.message.content = self._without()

    def _without(self) -> Any:
        kept = [one for one in self.message.content if one is not self.part]
        if isinstance(self.original, str):
            untouched = len(kept) == 1 and part_text(kept[0]) == self.original
            return self.original if untouched else kept
        same = len(kept) == len(self.original) and all(
            a is b for a, b in zip(kept, self.original, strict=True)
        )
        return self.original if same else kept

    def plain(self, messages: Sequence[Any]) -> list[Any]:
        """The messages, with a copy of this one without the part in its place."""
        if not self.attached:
            return list(messages)
        copy = self.message.model_copy(update={"content": self._without()})
        return [copy if message is self.message else message for message in messages]
