"""Token counts of texts, messages and tools, without a network.

The vocabulary is loaded in a thread. Until it is there, and for good where it
cannot be loaded, a text is counted by its scripts. Counts are cached by text and
the cache is bounded, so a message is tokenised once, not once a request.
"""

import asyncio
import contextlib
import json
import logging
import math
import threading
from collections.abc import Iterable
from typing import Any

from .calibration import NOTHING, Counts
from .message_text import field, fields_of, media_kind, part_text, parts_of, tool_calls_of
from .vocabulary import NO_TOKENS, ClassCounts, CountClasses, classes_by_script, load_vocabulary

logger = logging.getLogger("astrbot")

# Flat estimates: what a picture or recording costs depends on the provider.
IMAGE_TOKENS = 765
AUDIO_TOKENS = 500
# Role and separators around each message in the chat formats of common models.
MESSAGE_OVERHEAD = 4

_CACHE_CHARACTERS = 4_000_000


class TokenCounter:
    """Counts texts, messages and tool schemas, in tokens of the vocabulary."""

    def __init__(self) -> None:
        self._by_vocabulary: CountClasses | None = None
        self._cache: dict[str, ClassCounts] = {}
        self._cached_characters = 0
        # Previews count in a thread beside the requests on the event loop.
        self._cache_lock = threading.Lock()
        self._settled = asyncio.Event()
        self._settled.set()
        # Why there is no vocabulary, in both languages, for the page.
        self.problem: str | None = None

    @property
    def ready(self) -> bool:
        """Whether the vocabulary is loaded."""
        return self._by_vocabulary is not None

    async def load(self) -> None:
        """Loads the vocabulary in a thread; a failure is logged once."""
        self._settled.clear()
        try:
            by_vocabulary = await asyncio.to_thread(load_vocabulary)
        except (ImportError, OSError, ValueError) as error:
            problem = f"token vocabulary not available ({error}); counting by script"
            self.problem = f"词表不可用（{error}），按文字种类估算 tokens。 / {problem}"
            logger.warning("[context_manager] %s", problem)
            return
        finally:
            self._settled.set()
        with self._cache_lock:
            self._cache.clear()
            self._cached_characters = 0
            self._by_vocabulary = by_vocabulary

    async def settled(self, seconds: float) -> None:
        """Waits while the vocabulary is being loaded, but no longer than that."""
        if not self._settled.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._settled.wait(), seconds)

    def count_text(self, text: str) -> int:
        """Tokens of a text."""
        return math.ceil(sum(self.classes(text)))

    def classes(self, text: str) -> ClassCounts:
        """Tokens of a text by class."""
        if not text:
            return NO_TOKENS
        known = self._cache.get(text)
        if known is None:
            known = self._count(text)
            self._remember(text, known)
        return known

    async def count_in_thread(self, texts: Iterable[str]) -> int:
        """Tokens of long texts together, off the event loop and outside the cache."""
        return await asyncio.to_thread(
            lambda: sum(math.ceil(sum(self._count(text))) for text in texts)
        )

    def _count(self, text: str) -> ClassCounts:
        return (self._by_vocabulary or classes_by_script)(text)

    def _remember(self, text: str, counts: ClassCounts) -> None:
        if len(text) > _CACHE_CHARACTERS // 8:
            return
        with self._cache_lock:
            if text in self._cache:
                return
            self._cache[text] = counts
            self._cached_characters += len(text)
            while self._cached_characters > _CACHE_CHARACTERS:
                oldest = next(iter(self._cache))
                del self._cache[oldest]
                self._cached_characters -= len(oldest)

    def counts_of(self, message: Any) -> Counts:
        """What one message is counted by: its text, framing, media and tool calls."""
        fields = fields_of(message)
        content = fields.get("content")
        if isinstance(content, str) and not (
            fields.get("tool_calls") or fields.get("tool_call_id")
        ):
            # Nearly all of a long window.
            return (*self.classes(content), 1, 0, 0, 0, 0)
        texts, frames, media, reasoning = [], 1, 0, 0.0
        for part in parts_of(content):
            text = part_text(part)
            if text is not None:
                texts.append(text)
            elif isinstance(thought := field(part, "think"), str):
                reasoning += sum(self.classes(thought))
            elif kind := media_kind(part):
                media += IMAGE_TOKENS if kind == "image" else AUDIO_TOKENS
        for call in tool_calls_of(message):
            frames += 1
            texts += call
        if tool_call_id := field(message, "tool_call_id"):
            texts.append(str(tool_call_id))
        if len(texts) == 1:
            classes: Iterable[float] = self.classes(texts[0])
        else:
            classes = map(sum, zip(NO_TOKENS, *map(self.classes, texts), strict=True))
        return (*classes, frames, 0, media, reasoning, 0)

    def counts_of_all(self, messages: Iterable[Any]) -> Counts:
        """What several messages are counted by together."""
        return tuple(map(sum, zip(NOTHING, *map(self.counts_of, messages), strict=True)))

    def counts_of_text(self, text: str) -> Counts:
        """What a text that is no message of its own is counted by."""
        return (*self.classes(text), 0, 0, 0, 0, 0)

    def counts_of_tools(self, schemas: Iterable[dict[str, Any]]) -> Counts:
        """What tool schemas in the OpenAI format are counted by."""
        tokens = sum(
            self.count_text(json.dumps(schema, ensure_ascii=False)) + MESSAGE_OVERHEAD
            for schema in schemas
        )
        return (*NOTHING[:-4], tokens, 0, 0, 0)

    def count_message(self, message: Any) -> int:
        """Tokens of one message with its framing, media and tool calls."""
        *classes, frames, tools, media, reasoning, _ = self.counts_of(message)
        texts = math.ceil(sum(classes) + reasoning)
        return texts + frames * MESSAGE_OVERHEAD + tools + media

    def count_messages(self, messages: Iterable[Any]) -> int:
        """Tokens of several messages."""
        return sum(map(self.count_message, messages))

    def count_tools(self, schemas: Iterable[dict[str, Any]]) -> int:
        """Tokens of tool schemas in the OpenAI format."""
        return int(self.counts_of_tools(schemas)[-4])
