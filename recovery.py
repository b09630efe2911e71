"""Repairs what a killed process left short, from the journal.

The next start does it for every conversation, in the background; a request that comes
first does it on the list it has just loaded. What cannot be checked now stays for the
next request of its conversation. Where the host itself cut a short list once
more, the journal learns what was saved before anything else is waited for.
"""

import contextlib
import logging
from typing import Any

from .errors import JournalDamaged, StorageUnavailable
from .fingerprint import fingerprint
from .host import Host
from .journal import History, Journal, OpenRequest

logger = logging.getLogger("astrbot")


async def repair_left_behind(host: Host, journal: Journal) -> int:
    """Checks every conversation with a request that was left behind.

    Returns:
        How many of them were repaired.
    """
    repaired = 0
    for conversation_id, requests in list(journal.left_behind.items()):
        session_id = requests[0].session_id
        try:
            async with host.session_lock(session_id):
                repaired += await repair_conversation(host, journal, conversation_id)
        except StorageUnavailable:
            continue
        except Exception:
            logger.exception("[context_manager] %s: could not check the saved history", session_id)
    return repaired


async def repair_conversation(host: Host, journal: Journal, conversation_id: str) -> bool:
    """Checks a conversation for what was left behind in it; under its session's lock.

    Returns:
        Whether it was repaired.
    """
    requests = journal.left_behind.get(conversation_id)
    if not requests:
        return False
    session_id = requests[0].session_id
    stored = await host.load_conversation(session_id, conversation_id)
    history = await repaired_from_journal(journal, requests, host.normalised(stored or []))
    if history is not None:
        logger.info("[context_manager] %s: cut history repaired after a crash", session_id)
    if stored is not None:
        # The usage stored with a short request says little of a long chat.
        await host.save_conversation(session_id, conversation_id, history)
    for request in requests:
        await journal.close(request.id)
    journal.left_behind.pop(conversation_id, None)
    return history is not None


async def note_what_was_saved(host: Host, journal: Journal, cut: Any) -> None:
    """The request of a cut has just ended: the journal knows it by what the host saved.

    Args:
        host: The host.
        journal: The journal.
        cut: A request whose list may not be restored.
    """
    if not cut.open_cut or cut.journal_id is None:
        return
    projection = cut.projection
    noted = host.saved_messages([*projection.handed_over, projection.current])
    start, sent = projection.cut_at_save(host.saved_messages(cut.run_context.messages))
    if not sent or list(map(id, sent)) == list(map(id, noted)):
        return
    before, earlier = host.saved_messages(start), cut.journal_id
    if start is not projection.before and fingerprint(before[: len(sent)]) == fingerprint(sent):
        # Without the current message nothing tells it from the history itself.
        return
    with contextlib.suppress(StorageUnavailable):
        cut.journal_id = await journal.open(
            cut.session_id,
            cut.conversation_id,
            fingerprint(before),
            fingerprint(sent),
            lambda: host.saved_form(before),
        )
        await journal.close(earlier)


async def repaired_from_journal(
    journal: Journal, requests: list[OpenRequest], stored: History | None
) -> History | None:
    """What a conversation should hold if one of these requests left it short, or None."""
    repaired = None
    for request in requests:
        try:
            found = await journal.repaired(request, repaired or stored or [])
        except JournalDamaged as error:
            logger.warning(
                "[context_manager] %s: a history that was cut when the host ended cannot be "
                "repaired: %s",
                request.session_id,
                error,
            )
            continue
        repaired = found if found is not None else repaired
    return repaired


async def mend_left_behind(
    host: Host, journal: Journal, conversation_id: str, messages: list[Any]
) -> bool:
    """Repairs a list that was loaded from a conversation left short; whether it was."""
    requests = journal.left_behind.get(conversation_id)
    current = next((i for i in range(len(messages) - 1, -1, -1) if _is_user(messages[i])), -1)
    if not requests or current < 0:
        return False
    start = next((i for i, m in enumerate(messages) if not _is_head(m)), current)
    stored = host.saved_form(messages[:current])
    try:
        history = await repaired_from_journal(journal, requests, stored)
    except StorageUnavailable:
        return False
    if history is None or (bound := host.bound(history)) is None:
        return False
    messages[start:current] = bound
    return True


def _is_user(message: Any) -> bool:
    return message.role == "user"


def _is_head(message: Any) -> bool:
    return message.role == "system" or message._no_save
