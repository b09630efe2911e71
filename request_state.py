"""What is known of one request while it runs, and of one that is stored."""

from dataclasses import dataclass, field
from typing import Any

from .context_logic import Projection
from .host import ChatProvider
from .request_record import Measurements
from .run_usage import RunUsage
from .temporary_part import TemporaryPart


@dataclass(slots=True, eq=False)
class RequestState:
    """What one request needs to remember between its hooks.

    Attributes:
        owner: The flow that made it; another instance's state is not ours.
        conversation_id: Where the host saves to; None if it saves nowhere.
        request: The host's request object; None if its hook never fired.
        projection: Set once the request is built.
        run_context: The host's run, whose list is what it saves.
        seen: Session, name and platform to note after the reply; None if that is done.
        sender: Name of the person who asked.
        journal_id: Of its row in the journal, while it is cut.
        restored: Whether the whole history is back in that list.
        usage: How its tokens are estimated, set with the projection.
        recalled: The memories on the current message, if there are any.
    """

    owner: Any
    session_id: str
    conversation_id: str | None
    request: Any = None
    projection: Projection | None = None
    run_context: Any = None
    seen: tuple[str, str, str] | None = None
    sender: str = ""
    journal_id: int | None = None
    restored: bool = False
    failed: bool = False
    sections_sent: bool = False
    measured: Measurements = field(default_factory=lambda: Measurements(0))
    provider: ChatProvider | None = None
    usage: RunUsage | None = None
    recalled: TemporaryPart | None = None

    @property
    def held(self) -> list[str]:
        """What must stay in memory while the request runs."""
        return [self.session_id, *filter(None, [self.conversation_id])]

    @property
    def open_cut(self) -> bool:
        """Whether the host would save anything else than without the plugin now."""
        if self.projection is None or self.restored:
            return False
        return self.carries_memories or self.projection.changed_history

    @property
    def carries_memories(self) -> bool:
        """Whether the current message would be saved otherwise because of its memories."""
        return self.recalled is not None and self.recalled.changes_saved_form

    def whole(self) -> list[Any]:
        """The list the host should save."""
        uncut = self.uncut()
        return self.recalled.plain(uncut) if self.recalled else uncut

    def uncut(self) -> list[Any]:
        """The same with what the current message may still carry."""
        return self.projection.restore(self.run_context.messages)


@dataclass(frozen=True, slots=True)
class SavedRequest:
    """A request whose conversation is stored whole; sizes in tokens.

    Attributes:
        window_start: Messages of the conversation before the window.
        pinned: Those at the beginning of it that are sent all the same.
        before_tail: Those before the newest turns that ``tail_tokens`` keeps; 0 without.
        used: What the request took, estimated or reported, whichever is more.
        budget: What it might take.
        provider: The model it was meant for, if that is known.
    """

    session_id: str
    conversation_id: str
    window_start: int
    used: int
    budget: int
    provider: ChatProvider | None
    before_tail: int = 0
    pinned: int = 0
