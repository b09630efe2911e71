"""The file of an export, written and read.

Invariants:

* What is read is checked whole before anything of it is used; an unknown format or
  version, an unknown field or a value of the wrong type refuses the file.
* Texts are only texts: nothing in a file is ever run, rendered or followed.
* A session's conversation is written for people to keep; it is never read back,
  because it belongs to the host.
"""

import json
import re
import time
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, StrictBool, ValidationError

from .api_models import SharedChanges, StrictModel
from .errors import InvalidChange
from .memory import MAX_CHARACTERS
from .memory_store import Memory
from .message_text import clean_text, transcript
from .session_rows import EDITABLE, Session, Version

FORMAT = "astrbot_plugin_context_manager"
FORMAT_VERSION = 1

_clean = BeforeValidator(lambda value: clean_text(value) if isinstance(value, str) else value)
Name = Annotated[str, _clean, Field(max_length=100_000)]
Id = Annotated[str, _clean, Field(min_length=1, max_length=512)]
LongText = Annotated[str, _clean, Field(max_length=200_000)]
Tag = Annotated[str, _clean, Field(max_length=200)]
Count = Annotated[int, Field(strict=True, ge=0, le=2**53)]


class VersionEntry(StrictModel):
    """One version of a summary."""

    created_at: Count
    source: Literal["model", "user", "auto", "import"]
    model: Name = ""
    conversation_id: Name | None = None
    covered: Count = 0
    prefix_hash: Annotated[str, Field(pattern="^([0-9a-f]{64})?$")] = ""
    tokens: Count = 0
    text: Annotated[str, _clean, Field(max_length=1_000_000)]
    conflicting: StrictBool = False


class MemoryEntry(StrictModel):
    """One long-term memory."""

    text: Annotated[str, _clean, Field(min_length=1, max_length=MAX_CHARACTERS)]
    tags: Annotated[list[Tag], Field(default_factory=list, max_length=50)]
    about: Annotated[str, _clean, Field(max_length=200)] = ""
    source: Literal["model", "user", "command", "import"] = "import"
    flagged: StrictBool = False
    reviewed: StrictBool = False
    created_at: Count = 0
    recalled_at: Count | None = None


class SessionEntry(SharedChanges):
    """One session; values that a file leaves out stay as they are."""

    session_id: Id
    display_name: Name = ""
    platform: Name = ""
    fixed_memory: LongText | None = None
    summary: LongText | None = None
    compress_prompt: Annotated[str, _clean, Field(max_length=20_000)] | None = None
    last_seen_at: Count = 0
    updated_at: Count = 0
    versions: Annotated[list[VersionEntry], Field(default_factory=list, max_length=100_000)]
    memories: Annotated[list[MemoryEntry], Field(default_factory=list, max_length=10_000)]
    conversation: Any = None

    @property
    def values(self) -> dict[str, Any]:
        """The editable values the file gives."""
        given = {name: getattr(self, name) for name in EDITABLE}
        return {name: value for name, value in given.items() if value is not None}


class TransferFile(StrictModel):
    """A whole file."""

    format: Literal["astrbot_plugin_context_manager"]
    version: Literal[1]
    exported_at: Count = 0
    sessions: Annotated[list[SessionEntry], Field(max_length=1_000_000)]


def parse(content: bytes) -> list[SessionEntry]:
    """The sessions in a file.

    Raises:
        InvalidChange: The file is no export of this plugin; names the field.
    """
    try:
        raw = json.loads(content.decode("utf-8-sig"), parse_constant=str)
    except RecursionError as error:
        raise InvalidChange("file", "嵌套太深 / nested too deeply") from error
    except ValueError as error:
        raise InvalidChange("file", "不是有效的 JSON / not valid JSON") from error
    if not isinstance(raw, dict):
        raise InvalidChange("file", "不是 JSON 对象 / must be a JSON object")
    for name, known in (("format", FORMAT), ("version", FORMAT_VERSION)):
        if type(raw.get(name)) is not type(known) or raw[name] != known:
            text = f"必须是 {known!r}，这不是本插件的导出文件"
            raise InvalidChange(name, f"{text} / must be {known!r}: no export of this plugin")
    entries = _validated(TransferFile, raw).sessions
    seen: set[str] = set()
    for number, entry in enumerate(entries):
        if entry.session_id in seen:
            raise InvalidChange(
                f"sessions.{number}.session_id", "在文件里出现两次 / stands twice in the file"
            )
        seen.add(entry.session_id)
    return entries


def _validated(model: type[BaseModel], raw: dict[str, Any]) -> Any:
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "file"
        raise InvalidChange(field, first["msg"]) from error


def json_head(now: int) -> str:
    """What stands before the sessions, which are separated by commas."""
    start = {"format": FORMAT, "version": FORMAT_VERSION, "exported_at": now}
    return json.dumps(start)[:-1] + ', "sessions": ['


JSON_TAIL = "]}\n"


def json_session(
    session: Session,
    versions: list[Version],
    conversation_id: str | None,
    history: list[dict[str, Any]],
    memories: Sequence[Memory] = (),
) -> str:
    """One session as JSON, with its versions oldest first and its stored messages."""
    names = ("session_id", "display_name", "platform", *EDITABLE, "last_seen_at", "updated_at")
    entry: dict[str, Any] = {name: getattr(session, name) for name in names}
    columns = [name for name in Version.__slots__ if name not in ("id", "session_id")]
    entry["versions"] = [{name: getattr(v, name) for name in columns} for v in versions]
    entry["memories"] = [{n: getattr(m, n) for n in MemoryEntry.model_fields} for m in memories]
    entry["conversation"] = {"conversation_id": conversation_id, "messages": history}
    # Escapes keep lone surrogates of a stored history writable.
    return json.dumps(entry)


def markdown_session(
    session: Session, history: list[dict[str, Any]], memories: Sequence[Memory] = ()
) -> str:
    """One session as a document for people."""
    title = re.sub(r"\s+", " ", session.display_name).strip() or session.session_id
    parts = [f"# {title}", f"`{session.session_id}`"]
    for heading, text in (
        ("固定记忆 / Fixed memory", session.fixed_memory),
        ("AI 摘要 / AI summary", session.summary),
    ):
        if text.strip():
            parts += [f"## {heading}", text.strip()]
    if memories:
        parts.append("## 长期记忆 / Long-term memories")
        parts.append("\n".join(map(_bullet, memories)))
    if messages := transcript(history):
        parts.append("## 对话 / Conversation")
        for number, message in enumerate(messages, start=1):
            parts += [f"**[{number}] {message.role}**", message.text]
    return clean_text("\n\n".join(parts)) + "\n"


def _bullet(memory: Memory) -> str:
    details = [f"[{memory.about}]"] if memory.about else []
    details.append(memory.text.replace("\n", "\n  "))
    details += [f"#{tag}" for tag in memory.tags]
    day = time.strftime("%Y-%m-%d", time.gmtime(memory.created_at))
    return f"- {' '.join(details)} ({day}, {memory.source})"
