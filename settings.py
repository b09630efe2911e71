"""The plugin's settings as AstrBot's form saves them.

One model for ``_conf_schema.json``. A bad value never stops the plugin: it is
replaced by the default and named in ``problems``. The first defaults of what each
session can set for itself are those of ``options.SharedValues``.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from .options import SharedValues


class Settings(SharedValues):
    """Settings with their defaults and limits; the inherited ones are for new sessions.

    Attributes:
        keep_media_turns: Finished turns whose images and audio are still sent.
        keep_media_kilobytes: Images and audio that one request sends at most.
        remembered_sessions: Sessions that are held in memory.
        remembered_minutes: Minutes without a request after which one is let go.
        memory_max_entries: Long-term memories a session may hold.
        memory_recall_top_k: Memories that one request is sent with at most; 0: none.
        memory_recall_tokens: Tokens they may need together.
        commands_open_to_everyone: Whether every group member may use commands
            that spend tokens or change memory.
        summary_provider_id: Provider that writes summaries; empty: the session's own.
        summary_versions_kept: Versions of a summary that are kept.
        language: Language of command answers.
    """

    keep_media_turns: Annotated[int, Field(strict=True, ge=0, le=50)] = 3
    keep_media_kilobytes: Annotated[int, Field(strict=True, ge=0, le=102_400)] = 4096
    remembered_sessions: Annotated[int, Field(strict=True, ge=1, le=10_000)] = 128
    remembered_minutes: Annotated[int, Field(strict=True, ge=1, le=10_080)] = 120
    memory_max_entries: Annotated[int, Field(strict=True, ge=1, le=1000)] = 200
    memory_recall_top_k: Annotated[int, Field(strict=True, ge=0, le=20)] = 3
    memory_recall_tokens: Annotated[int, Field(strict=True, ge=50, le=8000)] = 500
    commands_open_to_everyone: bool = False
    summary_provider_id: Annotated[str, Field(max_length=200)] = ""
    summary_versions_kept: Annotated[int, Field(strict=True, ge=5, le=10_000)] = 100
    language: Literal["zh-CN", "en-US"] = "zh-CN"

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "Settings":
        """Reads the host's form; bad values fall back to their defaults."""
        values = {name: config[name] for name in cls.model_fields if name in config}
        try:
            return cls(**values)
        except ValidationError as error:
            bad = {str(item["loc"][0]) for item in error.errors()}
            return cls(**{name: value for name, value in values.items() if name not in bad})

    @classmethod
    def problems(cls, config: Mapping[str, Any]) -> list[str]:
        """Names of the settings whose values were replaced by the default."""
        try:
            cls(**{name: config[name] for name in cls.model_fields if name in config})
        except ValidationError as error:
            return sorted({str(item["loc"][0]) for item in error.errors()})
        return []
