"""What a session can do with its archived conversations: list them, bring one back.

A caller is bound to the session it names: no id of a conversation reaches another
session's messages.
"""

from collections.abc import Sequence
from typing import Any

from .archive_reader import ArchivedConversation, ArchiveReader
from .archiving import Archivist
from .errors import UnknownConversation
from .host import Host

# How long a list waits for what changed in the host since the last request.
CATCH_UP_SECONDS = 2


class History:
    """The archived conversations of the host's sessions."""

    def __init__(self, reader: ArchiveReader, archivist: Archivist, host: Host) -> None:
        self.reader = reader
        self._archivist = archivist
        self._host = host

    async def conversations(self, session_id: str) -> list[ArchivedConversation]:
        """The conversations of a session, newest first, as the host holds them now."""
        await self._archivist.catch_up(session_id, CATCH_UP_SECONDS)
        return await self.reader.conversations(session_id)

    async def resume(self, session_id: str, conversation_id: str, make_current: bool) -> str:
        """Makes a new conversation of the host from an archived one.

        Args:
            session_id: The session.
            conversation_id: A conversation of that session.
            make_current: Whether the session goes on with it.

        Returns:
            The id of the new conversation.

        Raises:
            UnknownConversation: The session's archive has no such conversation, or
                one that the host cannot load.
        """
        history, originals = await self.reader.last_state(session_id, conversation_id)
        storable = self._host.normalised(history)
        if not storable:
            raise UnknownConversation(
                "这个对话无法恢复。 / This conversation cannot be brought back."
            )
        known = await self.reader.conversations(session_id)
        title = next((c.title for c in known if c.conversation_id == conversation_id), "")
        if make_current:
            made = await self._host.new_conversation(session_id, storable, title, True)
        else:
            # No message may come between the new conversation and the switch back.
            async with self._host.session_lock(session_id):
                made = await self._host.new_conversation(session_id, storable, title, False)
        self._archivist.brought_back(session_id, made, originals)
        return made

    async def current(self, session_id: str) -> str | None:
        """The conversation that a session uses now."""
        return await self._host.current_conversation_id(session_id)


def chain(
    conversations: Sequence[ArchivedConversation], current: str | None
) -> list[dict[str, Any]]:
    """Conversations as the page and the commands show them."""
    names = ("conversation_id", "title", "first_at", "last_at", "messages", "in_host")
    return [
        {name: getattr(c, name) for name in names} | {"current": c.conversation_id == current}
        for c in conversations
    ]
