"""What a conversation should hold that was saved from a cut list.

One rule for every place it is applied at: a list is repaired only if it was saved
from that very cut. ``cut`` is a request whose list was cut and not restored.
"""

import logging
from dataclasses import dataclass
from typing import Any

from .archive_rows import Turn
from .archiving import Saved
from .host import Host
from .projection import repaired_behind_short, repaired_history

logger = logging.getLogger("astrbot")

History = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class EarlyLook:
    """What a conversation held when its cut request had just ended.

    Attributes:
        saved: What was saved from the cut.
        repaired: What it should have been.
    """

    saved: History
    repaired: History


def repaired_store(host: Host, cut: Any, stored: History) -> History | None:
    """The whole history for a stored list that was saved from a cut, or None."""
    normalised = host.normalised(stored)
    if not normalised:
        return None
    sent, whole, loaded = _saved_forms(host, cut)
    repaired = repaired_history(normalised, sent, whole, loaded)
    if repaired is None and cut.carries_memories:
        # After a reload the journal, which knows nothing of what the current message
        # carried, may have been first.
        repaired = repaired_history(normalised, host.saved_form(cut.uncut()), whole, loaded)
    return repaired


def repaired_behind(host: Host, cut: Any, early: EarlyLook, stored: History) -> History | None:
    """The same once a request without the plugin has saved over it."""
    loaded = host.saved_form(cut.projection.before)
    stored = host.normalised(stored) or []
    return repaired_behind_short(stored, early.saved, early.repaired, loaded)


async def early_look(host: Host, cut: Any) -> EarlyLook | None:
    """What was saved from a cut, before a waiting message can save over it.

    Only once the plugin is switched off: until then that message's own request mends
    the list it loads.
    """
    if not cut.open_cut:
        return None
    stored = await host.load_conversation(cut.session_id, cut.conversation_id) or []
    repaired = repaired_store(host, cut, stored)
    return EarlyLook(host.normalised(stored), repaired) if repaired is not None else None


async def checked(host: Host, request: Any, early: EarlyLook | None) -> tuple[Saved | None, bool]:
    """Repairs what the host saved of a request; under the session's lock.

    Args:
        host: The host.
        request: A request whose task has ended.
        early: What was seen before a waiting message, without the plugin.

    Returns:
        The conversation as it is then, None if there is none; and whether it was repaired.
    """
    session_id, conversation_id = request.session_id, request.conversation_id
    listed = await host.list_conversations(session_id)
    stored = await host.load_conversation(session_id, conversation_id)
    history = None
    if request.open_cut and stored:
        history = repaired_store(host, request, stored)
        if history is None and early is not None:
            history = repaired_behind(host, request, early, stored)
    if history is not None:
        logger.info("[context_manager] %s: cut history repaired", session_id)
    if history is not None or request.failed or request.projection.changed_history:
        # The stored usage is that of a short request; without the plugin
        # the host would believe it and send everything.
        await host.save_conversation(session_id, conversation_id, history)
    found = next((c for c in listed if c.conversation_id == conversation_id), None)
    if found is None or stored is None:
        return None, history is not None
    saved = Saved(found, stored if history is None else history, _turn_of(host, request))
    return saved, history is not None


def _turn_of(host: Host, request: Any) -> Turn | None:
    if request.projection is None:
        return None
    before = len(host.saved_messages(request.projection.before))
    return Turn(before, request.measured.at, request.sender)


def repaired_list(host: Host, cut: Any, messages: list[Any]) -> list[Any] | None:
    """The loaded list with the whole history in place of a saved cut, or None."""
    start = next(
        (i for i, m in enumerate(messages) if m.role != "system" and not m._no_save), len(messages)
    )
    sent, whole, loaded = _saved_forms(host, cut)
    if repaired_history(host.saved_form(messages), sent, whole, loaded) is None:
        return None
    restored = host.saved_messages(cut.whole())
    end = start + len(host.saved_messages(cut.run_context.messages))
    # The host added the turn's checkpoint when it saved, behind the last message.
    restored[-1]._checkpoint_after = messages[end - 1]._checkpoint_after
    return [*messages[:start], *restored, *messages[end:]]


def _saved_forms(host: Host, cut: Any) -> tuple[History, History, History]:
    """What the host saved from a cut, what it should have saved, and what it loaded."""
    final = cut.run_context.messages
    return (
        host.saved_form(final),
        host.saved_form(cut.whole()),
        host.saved_form(cut.projection.before),
    )
