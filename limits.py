"""What a request may use, and what is remembered of a conversation's window.

Plain values without I/O; sizes in estimated tokens unless said otherwise.
"""

from dataclasses import dataclass
from typing import NamedTuple


class Cost(NamedTuple):
    """Size of messages: the plugin's estimate and the host's own, in tokens.

    A tuple, because a long window makes thousands of them with every request.
    """

    tokens: int = 0
    host_tokens: int = 0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.tokens + other.tokens, self.host_tokens + other.host_tokens)

    def __sub__(self, other: "Cost") -> "Cost":
        return Cost(self.tokens - other.tokens, self.host_tokens - other.host_tokens)

    def scaled(self, ratio: float) -> "Cost":
        return Cost(int(self.tokens * ratio), int(self.host_tokens * ratio))

    def within(self, room: "Cost") -> bool:
        return self.tokens <= room.tokens and self.host_tokens <= room.host_tokens


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request may use.

    Attributes:
        budget: Tokens for everything that is sent and the reply.
        host_limit: Host-estimated tokens above which the host would cut by
            itself; None if it never does.
        keep_ratio: Share of the window's room that a cut keeps (0.3–1.0).
        keep_media_turns: Finished turns whose images and audio are still sent.
        keep_media_bytes: Bytes of images and audio that are sent at most, as
            they stand in the messages.
        keep_first_turns: Turns at the start of the conversation that stay.
        tail_tokens: Tokens of the newest turns that stay in the window also where
            they are covered; 0 keeps covered turns as long as the budget allows.
        model_limit: Tokens that the model takes; None if unknown. A window stays
            where it is when this changes and everything still fits.
        margin: Share by which estimated sizes may be too low.
        framing: Tokens of a prompt beside its messages and tools.
    """

    budget: int
    host_limit: int | None = None
    keep_ratio: float = 0.7
    keep_media_turns: int = 3
    keep_media_bytes: int = 4 << 20
    keep_first_turns: int = 0
    tail_tokens: int = 0
    model_limit: int | None = None
    margin: float = 0.0
    framing: int = 0

    @property
    def key(self) -> str:
        """Changes whenever a remembered window has to be chosen anew."""
        zones = f"{self.keep_first_turns}:{self.tail_tokens}"
        return f"{self.budget}:{self.keep_ratio:g}:{self.host_limit}:{zones}"

    @property
    def reply_reserve(self) -> int:
        """Tokens kept free for the reply and for what the estimate misses."""
        return min(1024, self.usable // 10)

    @property
    def room(self) -> int:
        """Estimated tokens that may be sent."""
        return int((self.usable - self.reply_reserve) / (1 + self.margin))

    @property
    def usable(self) -> int:
        """Tokens of budget and model for everything."""
        return self.budget if self.model_limit is None else min(self.budget, self.model_limit)


@dataclass(frozen=True, slots=True)
class WindowMark:
    """The first turn of a conversation's window, as remembered.

    Attributes:
        message_index: Position of the turn's user message in the history.
        content_hash: Hash of that message, to notice edits.
        settings_key: What it was chosen under, see ``Window.key``.
        media_index: Position before which images and audio are placeholders because
            there were too many bytes of them.
        squeezed: Turns that were shortened to fit: the position of each, as above, and
            the longest text it may keep, in characters.
    """

    message_index: int
    content_hash: str
    settings_key: str
    media_index: int = 0
    squeezed: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class TopicMark:
    """Where a new topic begins: what stands before it leaves the window.

    Attributes:
        message_index: Messages of the history before the new topic.
        content_hash: Hash of the last turn before it, to notice edits.
    """

    message_index: int
    content_hash: str
