"""Token estimates without a network.

Ranks come from a file that the host's own dependencies install; they are loaded
in a thread. Until they are there, and for good where they cannot be loaded, a
text is counted by its scripts. Counts are cached by text and the cache is
bounded, so a message is tokenised once, not once a request.
"""

import asyncio
import base64
import importlib.util
import json
import logging
import re
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .message_text import clean_text, field, media_kind, part_text, parts_of, tool_calls_of

logger = logging.getLogger("astrbot")

# Flat estimates: what a picture or recording costs depends on the provider.
IMAGE_TOKENS = 765
AUDIO_TOKENS = 500
# Role and separators around each message in the chat formats of common models.
MESSAGE_OVERHEAD = 4

_CACHE_CHARACTERS = 4_000_000
# A single run of a million spaces makes tiktoken raise something that is not an
# Exception; pieces of this size are safe.
_PIECE = 20_000
_QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Tokens a character, an upper estimate over common vocabularies.
_BY_SCRIPT = (
    (re.compile("[\u3040-\u30ff\uac00-\ud7af]"), 0.9),
    (re.compile("[\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"), 0.8),
    (re.compile("[\U0001f000-\U0001faff\u2600-\u27bf\u200d\ufe0f]"), 2.0),
    (re.compile(r"[A-Za-z]"), 0.25),
    (re.compile(r"\s"), 0.15),
    (re.compile(r"[\x21-\x7e]"), 0.6),
)
_OTHER_SCRIPT = 0.8


def count_by_script(text: str) -> int:
    """Estimates tokens from the scripts of the characters alone."""
    total, rest = 0.0, len(text)
    for pattern, weight in _BY_SCRIPT:
        found = len(pattern.findall(text))
        if weight == 0.6:
            # Letters are in this range too and already counted.
            found -= len(re.findall("[A-Za-z]", text))
        total += found * weight
        rest -= found
    return int(total + rest * _OTHER_SCRIPT + 0.999)


def _rank_file() -> Path | None:
    spec = importlib.util.find_spec("dashscope")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / "resources" / "qwen.tiktoken"
        if path.is_file():
            return path
    return None


def _load_encoding() -> Any:
    import tiktoken

    path = _rank_file()
    if path is None:
        raise FileNotFoundError("dashscope/resources/qwen.tiktoken is not installed")
    ranks = {}
    for line in path.read_bytes().splitlines():
        token, rank = line.split()
        ranks[base64.b64decode(token)] = int(rank)
    # Built from the file itself: get_encoding would go to the network.
    return tiktoken.Encoding(
        "context_manager", pat_str=_QWEN_PATTERN, mergeable_ranks=ranks, special_tokens={}
    )


class TokenCounter:
    """Counts texts, messages and tool schemas, in estimated tokens."""

    def __init__(self) -> None:
        self._encoding: Any = None
        self._cache: dict[str, int] = {}
        self._cached_characters = 0
        # Previews count in a thread beside the requests on the event loop.
        self._cache_lock = threading.Lock()
        self.problem: str | None = None

    @property
    def ready(self) -> bool:
        """Whether the vocabulary is loaded."""
        return self._encoding is not None

    async def load(self) -> None:
        """Loads the vocabulary in a thread; a failure is logged once."""
        try:
            encoding = await asyncio.to_thread(_load_encoding)
        except (ImportError, OSError, ValueError) as error:
            self.problem = f"token vocabulary not available ({error}); counting by script"
            logger.warning("[context_manager] %s", self.problem)
            return
        with self._cache_lock:
            self._cache.clear()
            self._cached_characters = 0
            self._encoding = encoding

    def count_text(self, text: str) -> int:
        """Tokens of a text."""
        if not text:
            return 0
        known = self._cache.get(text)
        if known is None:
            known = self._count(text)
            self._remember(text, known)
        return known

    async def count_in_thread(self, texts: Iterable[str]) -> int:
        """Tokens of long texts together, off the event loop and outside the cache."""
        return await asyncio.to_thread(lambda: sum(map(self._count, texts)))

    def _count(self, text: str) -> int:
        if self._encoding is None:
            return count_by_script(text)
        text = clean_text(text)
        pieces = (text[i : i + _PIECE] for i in range(0, len(text), _PIECE))
        return sum(len(self._encoding.encode_ordinary(piece)) for piece in pieces)

    def _remember(self, text: str, tokens: int) -> None:
        if len(text) > _CACHE_CHARACTERS // 8:
            return
        with self._cache_lock:
            if text in self._cache:
                return
            self._cache[text] = tokens
            self._cached_characters += len(text)
            while self._cached_characters > _CACHE_CHARACTERS:
                oldest = next(iter(self._cache))
                del self._cache[oldest]
                self._cached_characters -= len(oldest)

    def count_message(self, message: Any) -> int:
        """Tokens of one message with its framing, media and tool calls."""
        total = MESSAGE_OVERHEAD
        for part in parts_of(field(message, "content")):
            text = part_text(part)
            if text is None:
                text = field(part, "think")
            if isinstance(text, str):
                total += self.count_text(text)
            elif kind := media_kind(part):
                total += IMAGE_TOKENS if kind == "image" else AUDIO_TOKENS
        for call_id, name, arguments in tool_calls_of(message):
            total += MESSAGE_OVERHEAD + sum(map(self.count_text, (call_id, name, arguments)))
        if tool_call_id := field(message, "tool_call_id"):
            total += self.count_text(str(tool_call_id))
        return total

    def count_messages(self, messages: Iterable[Any]) -> int:
        """Tokens of several messages."""
        return sum(map(self.count_message, messages))

    def count_tools(self, schemas: Iterable[dict[str, Any]]) -> int:
        """Tokens of tool schemas in the OpenAI format."""
        return sum(
            self.count_text(json.dumps(schema, ensure_ascii=False)) + MESSAGE_OVERHEAD
            for schema in schemas
        )
