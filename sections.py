"""The sections of the system message: fixed memory and summary.

Invariants: each marker stands at most once, as a line of its own; an empty section
is left out together with its marker; no stored text can forge a marker.
"""

import re
from collections.abc import Mapping

from .message_text import clean_text

FIXED_MARKER = "===== Fixed Memory ====="
SUMMARY_MARKER = "===== AI Summary ====="
FIXED_FRAME = "Facts and rules written by the operator of this chat. They always apply."
SUMMARY_FRAME = (
    "Summary of earlier parts of this conversation. Where the messages below differ "
    "from it, the newer messages are right."
)

# Whatever a reader may take for the end of a line, as in ``str.splitlines``.
_BREAKS = r"\n\r\v\f\x1c-\x1e\x85\u2028\u2029"
# Blanks never reach over a break: a text of many empty lines would take quadratic time.
_BLANKS = rf"[^\S{_BREAKS}]*"
_MARKER_LINE = re.compile(
    rf"(?:\A|(?<=[{_BREAKS}])){_BLANKS}=+{_BLANKS}(?:Fixed Memory|AI Summary){_BLANKS}=+{_BLANKS}"
    rf"(?=[{_BREAKS}]|\Z)",
    re.IGNORECASE,
)


def neutralise_markers(text: str) -> str:
    """Makes lines that look like a section marker harmless."""
    return _MARKER_LINE.sub(lambda line: line[0].replace("=", "-"), clean_text(text))


def with_sections(system_prompt: str, fixed_memory: str, summary: str) -> str:
    """The system prompt with the sections behind it; empty ones are left out."""
    blocks = [neutralise_markers(system_prompt).rstrip()] if system_prompt.strip() else []
    for marker, frame, text in (
        (FIXED_MARKER, FIXED_FRAME, fixed_memory),
        (SUMMARY_MARKER, SUMMARY_FRAME, summary),
    ):
        if text.strip():
            blocks.append(f"{marker}\n{frame}\n\n{neutralise_markers(text).strip()}")
    return "\n\n".join(blocks)


def oversized(sections: Mapping[str, int], budget: int) -> list[str]:
    """Sections of ours that take more than a third of the budget."""
    return [name for name in ("fixed_memory", "summary") if 3 * sections.get(name, 0) > budget]
