"""The piece of a message that shows why it was found.

Pure. Hits stand between ``HIT_START`` and ``HIT_END``; these two never come from the
message itself.
"""

from collections.abc import Iterator, Sequence

from .search_terms import INDEXED_CHARACTERS, spans_of_terms

HIT_START, HIT_END = "⟪", "⟫"
_PLAIN = str.maketrans({HIT_START: "《", HIT_END: "》"})
# Characters shown, and how many of them stand before the first hit.
SNIPPET_LENGTH, _BEFORE = 120, 30


def snippet(text: str, terms: Sequence[str], needle: str = "", length: int = SNIPPET_LENGTH) -> str:
    """Cuts the most telling piece out of a text and marks the hits.

    Args:
        text: The whole message.
        terms: The terms of the question.
        needle: The question itself; where it stands literally, that place is shown.
        length: About how many characters are shown.

    Returns:
        One line; ``…`` where text is left out.
    """
    text = " ".join(text.translate(_PLAIN).split())[:INDEXED_CHARACTERS]
    spans = _literal_spans(text, needle) or list(spans_of_terms(text, set(terms)))
    start = _best_start(spans, length, len(text))
    end = min(len(text), start + length)
    shown = _marked(text[start:end], [(a - start, b - start) for a, b in spans])
    return f"{'…' if start else ''}{shown}{'…' if end < len(text) else ''}"


def _literal_spans(text: str, needle: str) -> list[tuple[int, int]]:
    needle, folded = " ".join(needle.split()).lower(), text.lower()
    spans = []
    # Lower-casing can change the length of rare characters; then the terms have to do.
    if needle and len(folded) == len(text):
        place = folded.find(needle)
        while place >= 0:
            spans.append((place, place + len(needle)))
            place = folded.find(needle, place + len(needle))
    return spans


def _best_start(spans: Sequence[tuple[int, int]], length: int, total: int) -> int:
    """Where to begin so that most of the hits are seen; the first such place."""
    room = length - _BEFORE
    best, most = 0, -1
    last = 0
    for first, (start, _) in enumerate(spans):
        last = max(last, first)
        while last < len(spans) and spans[last][1] <= start + room:
            last += 1
        if last - first > most:
            best, most = start, last - first
    return max(0, min(best - _BEFORE, total - length))


def _marked(text: str, spans: Sequence[tuple[int, int]]) -> str:
    pieces, done = [], 0
    for start, end in _joined(spans):
        start, end = max(start, done), min(end, len(text))
        if start < end:
            pieces += [text[done:start], HIT_START, text[start:end], HIT_END]
            done = end
    return "".join([*pieces, text[done:]])


def _joined(spans: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    current: tuple[int, int] | None = None
    for start, end in spans:
        if current and start <= current[1]:
            current = (current[0], max(current[1], end))
            continue
        if current:
            yield current
        current = (start, end)
    if current:
        yield current
