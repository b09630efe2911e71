"""Requests that were cut, until what the host saved of them has been checked.

Invariants:

* A cut is kept by conversation until its pipeline task has ended. Whoever meets
  an unrestored cut first repairs it: the next request of that conversation, on
  the list it has just loaded, or the task's done-callback, in the host's store.
* Before a list is cut, the journal holds what its repair needs, so that the next
  start can do it if this process is killed.
* A repair acts only on a list that was saved from that very cut.
"""

import contextlib
import logging
from dataclasses import dataclass, field
from typing import Any

from .archiving import Archivist, Saved
from .errors import StorageUnavailable
from .fingerprint import fingerprint
from .host import Host
from .journal import History, Journal, OpenRequest
from .recovery import (
    mend_left_behind,
    note_what_was_saved,
    repair_conversation,
    repaired_from_journal,
)
from .repair import checked, early_look, repaired_list, repaired_store
from .request_state import RequestState

logger = logging.getLogger("astrbot")


@dataclass(slots=True)
class OpenCuts:
    """The open cuts of one plugin instance.

    Attributes:
        host: Where conversations are loaded and saved.
        journal: What outlives the process.
        archivist: Takes over what was saved; None until there is one.
        closed: Whether the instance ends: then only repairs still happen.
    """

    host: Host
    journal: Journal
    archivist: Archivist | None = None
    closed: bool = False
    _cuts: dict[str, list[RequestState]] = field(default_factory=dict)

    def is_cut(self, conversation_id: str) -> bool:
        """Whether a conversation may be stored short now."""
        return conversation_id in self.journal.left_behind or conversation_id in self._cuts

    async def begin(self, state: RequestState) -> None:
        """A request is built and its list is about to be replaced."""
        if not state.conversation_id:
            return
        if state.projection.changed_history and state.projection.current is not None:
            await self._note(state)
        if state.open_cut:
            self._cuts.setdefault(state.conversation_id, []).append(state)

    async def _note(self, state: RequestState) -> None:
        host, projection = self.host, state.projection
        before, sent = projection.before, [*projection.handed_over, projection.current]
        try:
            state.journal_id = await self.journal.open(
                state.session_id,
                state.conversation_id,
                fingerprint(before, host.prompt_of(before)),
                fingerprint(sent, host.prompt_of(sent)),
                lambda: host.saved_form(before),
            )
        except StorageUnavailable:
            # The storage logs it; the cut goes on without the journal.
            return
        except Exception:
            logger.exception("[context_manager] %s: no journal of a request", state.session_id)

    async def mend(self, state: RequestState, messages: list[Any]) -> None:
        """Repairs a list that was loaded from a conversation still cut."""
        conversation_id = state.conversation_id or ""
        mended = await mend_left_behind(self.host, self.journal, conversation_id, messages)
        for cut in self._cuts.get(conversation_id, []):
            repaired = repaired_list(self.host, cut, messages) if cut.open_cut else None
            if repaired is not None:
                messages[:], mended = repaired, True
        if mended:
            logger.info("[context_manager] %s: cut history repaired on load", state.session_id)

    async def settle(self, state: RequestState) -> bool:
        """A request's task has ended: checks what was saved, and hands it on.

        Returns:
            Whether it was repaired.
        """
        saved, repaired = None, False
        try:
            early = await early_look(self.host, state) if self.closed else None
            if not self.closed:
                await note_what_was_saved(self.host, self.journal, state)
            async with self.host.session_lock(state.session_id):
                saved, repaired = await checked(self.host, state, early)
                if not self.closed and await repair_conversation(
                    self.host, self.journal, state.conversation_id
                ):
                    (saved, _), repaired = await checked(self.host, state, None), True
        except Exception:
            logger.exception(
                "[context_manager] %s: could not check the saved history", state.session_id
            )
            await self._leave_behind(state)
        finally:
            self._end(state)
        if saved is not None and not self.closed:
            await self._keep(state, saved)
        return repaired

    async def _leave_behind(self, state: RequestState) -> None:
        if state.open_cut and state.journal_id is not None and not self.closed:
            with contextlib.suppress(StorageUnavailable):
                await self.journal.leave_behind(state.journal_id)

    def _end(self, state: RequestState) -> None:
        cuts = self._cuts.get(state.conversation_id, [])
        if state in cuts:
            cuts.remove(state)
        if not cuts:
            self._cuts.pop(state.conversation_id, None)

    async def _keep(self, state: RequestState, saved: Saved) -> None:
        """Takes over what was saved into the journal and the archive."""
        conversation_id = saved.conversation.conversation_id
        if state.journal_id is not None:
            with contextlib.suppress(StorageUnavailable):
                await self.journal.follow(state.session_id, conversation_id, saved.history)
                await self.journal.close(state.journal_id)
        if self.archivist is not None and not self.is_cut(conversation_id):
            self.archivist.later(saved)

    async def whole_history(self, session_id: str) -> tuple[str | None, History]:
        """Id and messages of a session's current conversation, as ``whole_conversation``.

        Returns:
            ``(None, [])`` if there is no conversation.
        """
        conversation_id = await self.host.current_conversation_id(session_id)
        if not conversation_id:
            return None, []
        history = await self.whole_conversation(session_id, conversation_id)
        return (None, []) if history is None else (conversation_id, history)

    async def whole_conversation(self, session_id: str, conversation_id: str) -> History | None:
        """A conversation as it will be once all cuts are repaired; None if there is none.

        The host may have stored a cut copy that is not repaired yet; waiting for that
        could take as long as the requests that are queued.
        """
        while True:
            cuts, left_behind = self._of(conversation_id)
            history = await self.host.load_conversation(session_id, conversation_id)
            if history is None:
                return None
            if left_behind:
                stored = self.host.normalised(history)
                whole = await repaired_from_journal(self.journal, left_behind, stored)
                history = whole or history
            # A cut that was opened or repaired meanwhile may have changed what was read.
            if (cuts, left_behind) == self._of(conversation_id):
                break
        for cut in cuts:
            whole = repaired_store(self.host, cut, history) if cut.open_cut else None
            history = history if whole is None else whole
        return history

    def _of(self, conversation_id: str) -> tuple[list[RequestState], list[OpenRequest]]:
        """The cuts of a conversation that may be stored short: ours, and an earlier instance's."""
        left_behind = self.journal.left_behind.get(conversation_id, [])
        return list(self._cuts.get(conversation_id, [])), left_behind
