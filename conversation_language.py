"""Which of the plugin's languages a conversation is held in.

Pure. It is told by the first words of the conversation alone, which are the same with
every request: tool schemas stand before everything else in a prompt, so a language that
changed on the way would cost the provider's whole cache.
"""

import re
from collections.abc import Iterable
from itertools import islice
from typing import Any

from .message_text import field, part_text, parts_of, spoken_text

CHINESE, ENGLISH = "zh-CN", "en-US"
# Fewer words are said in any language: "hi", "ok, thanks".
_LEAST_WORDS = 3
# A chat of pictures alone is not read to its end with every request.
_LOOKED_AT = 20
_READ = 2000

_OTHER = re.compile("[\u3040-\u30ff\uac00-\ud7af]")
_HAN = re.compile("[\u4e00-\u9fff]")
_WORD = re.compile(r"[^\W\d_]{2,}")
# Links, code and what adapters put in brackets are nobody's language.
_NO_WORDS = re.compile(r"\w+://\S+|`[^`]*`|\[[^\]]*\]|[#/]\S+")


def language_of(messages: Iterable[Any], otherwise: str) -> str:
    """The language of a conversation.

    Args:
        messages: Stored records or the host's objects, the current one included.
        otherwise: The language if nothing tells.
    """
    said = (_words_of(m) for m in messages if field(m, "role") == "user")
    return next(filter(None, map(_language, islice(said, _LOOKED_AT))), otherwise)


def _words_of(message: Any) -> str:
    """The user's own words: quotations and captions stand in parts behind them."""
    texts = map(part_text, parts_of(field(message, "content")))
    return spoken_text({"content": next(filter(None, texts), "")})


def _language(text: str) -> str | None:
    """The language of a text; None if it does not tell, or is in a third one."""
    text = _NO_WORDS.sub(" ", text[:_READ])
    if _OTHER.search(text):
        return None
    if _HAN.search(text):
        return CHINESE
    return ENGLISH if len(_WORD.findall(text)) >= _LEAST_WORDS else None
