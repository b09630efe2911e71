"""What the page may send: one model per kind of input, unknown fields refused."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model

from .options import SharedValues

SessionId = Annotated[str, Field(min_length=1, max_length=512)]
Revision = Annotated[str, Field(min_length=1, max_length=64)]
Text = Annotated[str, Field(max_length=200_000)]


class StrictModel(BaseModel):
    """Input in which an unknown field is an error."""

    model_config = ConfigDict(extra="forbid")


class ListQuery(StrictModel):
    """Query of ``GET sessions``."""

    q: Annotated[str, Field(max_length=200)] = ""
    kind: Literal["", "group", "private", "webchat", "other"] = ""
    platform: Annotated[str, Field(max_length=200)] = ""
    limit: Annotated[int, Field(ge=1, le=200)] = 50
    offset: Annotated[int, Field(ge=0, le=10_000_000)] = 0


class SessionQuery(StrictModel):
    """Query or body that names a session."""

    session_id: SessionId


class Nothing(StrictModel):
    """Query of a route without parameters."""


SharedChanges = create_model(
    "SharedChanges",
    __base__=StrictModel,
    __doc__="Values that may be set for all sessions; absent ones stay.",
    **{
        name: (Annotated[field.annotation, *field.metadata] | None, None)
        for name, field in SharedValues.model_fields.items()
    },
)


class Changes(SharedChanges):
    """Editable values of one session; absent ones stay."""

    fixed_memory: Text | None = None
    summary: Text | None = None
    compress_prompt: Annotated[str, Field(max_length=20_000)] | None = None


class SaveBody(SessionQuery):
    """Body of ``POST session``."""

    revision: Revision
    changes: Changes


class ApplyBody(StrictModel):
    """Body of ``POST sessions/apply``."""

    changes: SharedChanges


class CompressBody(SessionQuery):
    """Body of ``POST session/compress``."""

    focus: Annotated[str, Field(max_length=2000)] = ""
    rebuild: Annotated[bool, Field(strict=True)] = False


class VersionsQuery(SessionQuery):
    """Query of ``GET session/versions``."""

    limit: Annotated[int, Field(ge=1, le=100)] = 20
    offset: Annotated[int, Field(ge=0, le=10_000_000)] = 0


class RestoreBody(SessionQuery):
    """Body of ``POST session/restore``."""

    version_id: Annotated[int, Field(strict=True, ge=1, le=2**53)]
    revision: Revision


class PreviewQuery(SessionQuery):
    """Query of ``GET session/preview``."""

    limit: Annotated[int, Field(ge=1, le=1_000_000)] = 1_000_000


class TopicBody(SessionQuery):
    """Body of ``POST session/topic``."""

    undo: Annotated[bool, Field(strict=True)] = False


class RequestsQuery(SessionQuery):
    """Query of ``GET session/requests``."""

    limit: Annotated[int, Field(ge=1, le=200)] = 50


class MemoriesQuery(SessionQuery):
    """Query of ``GET memories``."""

    q: Annotated[str, Field(max_length=200)] = ""
    limit: Annotated[int, Field(ge=1, le=200)] = 50
    offset: Annotated[int, Field(ge=0, le=10_000_000)] = 0


MemoryId = Annotated[int, Field(strict=True, ge=1, le=2**53)]


class MemoryBody(SessionQuery):
    """Body of ``POST memories``; without an id it adds one."""

    id: MemoryId | None = None
    text: Annotated[str, Field(max_length=20_000)]
    tags: Annotated[list[Annotated[str, Field(max_length=200)]], Field(max_length=50)] | None = None
    reviewed: Annotated[bool, Field(strict=True)] | None = None


class MemoryDeleteBody(SessionQuery):
    """Body of ``POST memories/delete``: some by id, or all of a session."""

    ids: Annotated[list[MemoryId], Field(max_length=10_000)] = []
    all: Annotated[bool, Field(strict=True)] = False


class ExportQuery(StrictModel):
    """Query of ``GET export``."""

    session_id: Annotated[str, Field(max_length=512)] = ""
    format: Literal["json", "markdown"] = "json"


class ImportQuery(StrictModel):
    """Query of ``POST import``; the file comes as a part of the form."""

    dry_run: bool = False


Time = Annotated[int, Field(ge=0, le=2**53)]
ConversationId = Annotated[str, Field(min_length=1, max_length=512)]


class HistoryQuery(StrictModel):
    """Query of ``GET history``; without a session it reads all of them."""

    session_id: Annotated[str, Field(max_length=512)] = ""
    conversation_id: Annotated[str, Field(max_length=512)] = ""
    q: Annotated[str, Field(max_length=2000)] = ""
    role: Literal["", "user", "assistant", "tool", "system"] = ""
    since: Time | None = None
    until: Time | None = None
    around: Annotated[int, Field(ge=1, le=2**53)] | None = None
    limit: Annotated[int, Field(ge=1, le=200)] = 50
    offset: Annotated[int, Field(ge=0, le=10_000_000)] = 0


class HistoryExportQuery(StrictModel):
    """Query of ``GET history/export``; without a session it exports all of them."""

    session_id: Annotated[str, Field(max_length=512)] = ""
    conversation_id: Annotated[str, Field(max_length=512)] = ""
    format: Literal["json", "markdown"] = "json"


class ResumeBody(SessionQuery):
    """Body of ``POST conversations/resume``."""

    conversation_id: ConversationId
    make_current: Annotated[bool, Field(strict=True)] = False
