"""What can be set per session, for all sessions at once, and as a first default.

Invariant: this is the only place that knows an option's name, limits and default.
The settings form, the table ``sessions``, the page API and the export follow it.
"""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Flag = Annotated[bool, Field(strict=True)]
TokenBudget = Annotated[int, Field(strict=True, ge=1024, le=1_000_000)]
SummaryTarget = Annotated[int, Field(strict=True, ge=100, le=20_000)]


class SharedValues(BaseModel):
    """The values of one session, with their limits and defaults.

    Attributes:
        recent_context_token_budget: Tokens a request may use.
        summary_target_tokens: Wanted length of a summary.
        window_keep_ratio: Share of the window's room that a cut keeps.
        keep_first_turns: First turns of a conversation that are always sent.
        tail_tokens: What stays of the newest messages also where the summary covers
            them; 0: as much as the budget allows.
        auto_compress: Whether summaries are made without being asked for.
        auto_compress_min_messages: Uncovered messages outside the window that
            start an automatic summary.
        auto_compress_threshold: With ``tail_tokens``, the share of the budget
            that starts one too.
        auto_compress_notice: Whether the chat is told about automatic summaries.
        topic_idle_messages: Group messages in a row that did not address the bot
            and after which a new topic begins; 0: never.
        topic_idle_hours: Hours without a request after which a new topic begins
            in a group; 0: never.
        archive_enabled: Whether messages are copied to the archive.
        search_tool_enabled: Whether the model may search the session's archive.
        memory_enabled: Whether the model may keep long-term memories.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    recent_context_token_budget: TokenBudget = 100_000
    summary_target_tokens: SummaryTarget = 1500
    window_keep_ratio: Annotated[float, Field(strict=True, ge=0.3, le=1.0)] = 0.7
    keep_first_turns: Annotated[int, Field(strict=True, ge=0, le=50)] = 0
    tail_tokens: Annotated[int, Field(strict=True, ge=0, le=1_000_000)] = 0
    auto_compress: Flag = False
    auto_compress_min_messages: Annotated[int, Field(strict=True, ge=2, le=1000)] = 8
    auto_compress_threshold: Annotated[float, Field(strict=True, ge=0.3, le=1.0)] = 0.85
    auto_compress_notice: Flag = False
    topic_idle_messages: Annotated[int, Field(strict=True, ge=0, le=1000)] = 0
    topic_idle_hours: Annotated[int, Field(strict=True, ge=0, le=720)] = 0
    archive_enabled: Flag = True
    search_tool_enabled: Flag = False
    memory_enabled: Flag = False


# What may be set for all sessions at once, and as the default for new ones.
SHARED = tuple(SharedValues.model_fields)
# Those that the page API answers under ``options``.
OPTIONS = SHARED[2:]
FLAGS = tuple(name for name in SHARED if isinstance(getattr(SharedValues(), name), bool))
