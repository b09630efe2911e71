"""Everything the plugin needs from AstrBot's core, and the only place that imports it.

The host's classes are looked up by feature, never by version. A feature that is
missing is named in ``missing_features``; the plugin then stops cutting requests
and still injects fixed memory and summary.
"""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from .archive import HostConversation
from .context_logic import Cost, Draft
from .fingerprint import UNSAVED_ROLES
from .host_answers import described_answer, fallback_ids
from .host_types import ChatProvider, LLMAnswer
from .host_warnings import context_settings, warning
from .message_text import field, media_kind, part_text, parts_of
from .prompt_estimates import Estimate
from .tokens import TokenCounter

logger = logging.getLogger("astrbot")

_missing: list[str] = []

try:
    from astrbot.core.agent.message import (
        Message,
        TextPart,
        bind_checkpoint_messages,
        dump_messages_with_checkpoints,
    )
except ImportError:
    Message = TextPart = bind_checkpoint_messages = dump_messages_with_checkpoints = None
    _missing.append("messages")
try:
    from astrbot.core.utils.session_lock import session_lock_manager
except ImportError:
    session_lock_manager = None
    _missing.append("session lock")
try:
    from astrbot.core.agent.tool import FunctionTool
except ImportError:
    # Without it models get no tools of the plugin; everything else works.
    FunctionTool = None
try:
    from astrbot.core.agent.context.token_counter import EstimateTokenCounter
except ImportError:
    # Without it the host's threshold is kept by the plugin's own estimate.
    EstimateTokenCounter = None
try:
    from astrbot.core.db.po import ConversationV2
    from sqlalchemy import Text, select, type_coerce
except ImportError:
    # Without it conversations are listed with everything that was said in them.
    ConversationV2 = Text = select = type_coerce = None
try:
    from astrbot.core.message.message_event_result import MessageChain
except ImportError:
    MessageChain = None  # The plugin cannot speak first; commands still answer.
try:
    from astrbot.core.config.default import VERSION
except ImportError:
    VERSION = "unknown"

GROUP_LOOKUP_SECONDS = 3
# The host finds the plugin's tools by this when it is switched off or limited.
_MAIN = f"{__package__}.main"
# Of texts whose estimate by the host is remembered.
_ESTIMATED_CHARACTERS = 4_000_000


class Host:
    """The host as the plugin sees it."""

    def __init__(self, context: Any, tokens: TokenCounter) -> None:
        self._context = context
        self._tokens = tokens
        self._host_counter = EstimateTokenCounter() if EstimateTokenCounter else None
        self._estimates: dict[str, int] = {}
        self._estimated_characters = 0
        self.missing_features = list(_missing)
        self.version = str(VERSION)

    # Messages

    def make_message(self, draft: Draft) -> Any:
        """A message of the host from a draft."""
        content = draft.content
        if not isinstance(content, str):
            content = [TextPart(text=p) if isinstance(p, str) else p for p in content]
        return Message(role=draft.role, content=content)

    def measured_by(self, estimate: Estimate, *, for_host: bool = True) -> Callable[[Any], Cost]:
        """Sizes of messages by an estimate and by the host's own.

        Args:
            estimate: Of the model that a request is meant for.
            for_host: Whether the host's own matter; without a limit of its own they do not.
        """

        def measure(message: Any) -> Cost:
            tokens = estimate.tokens(self._tokens.counts_of(message))
            return Cost(tokens, self._host_estimate(message, tokens) if for_host else 0)

        return measure

    def text_part(self, text: str) -> Any:
        """A part of a message."""
        return TextPart(text=text)

    def temporary_part(self, text: str) -> Any:
        """A part of a message that the host sends and does not save."""
        return TextPart(text=text).mark_as_temp()

    def _host_estimate(self, message: Any, fallback: int) -> int:
        if self._host_counter is None:
            return fallback
        if field(message, "tool_calls") or any(
            media_kind(part) or part_text(part) is None
            for part in parts_of(field(message, "content"))
        ):
            return self._host_counter.count_tokens([message])
        return sum(
            self._estimate_text(part_text(part)) for part in parts_of(field(message, "content"))
        )

    def _estimate_text(self, text: str) -> int:
        known = self._estimates.get(text)
        if known is None:
            known = self._host_counter.count_tokens([Message(role="user", content=text)])
            self._estimated_characters += len(text)
            if self._estimated_characters > _ESTIMATED_CHARACTERS:
                self._estimates.clear()
                self._estimated_characters = len(text)
            self._estimates[text] = known
        return known

    def saved_form(self, messages: Sequence[Any]) -> list[dict[str, Any]]:
        """What the host stores for a list of messages."""
        return dump_messages_with_checkpoints(self.saved_messages(messages))

    def saved_messages(self, messages: Sequence[Any]) -> list[Any]:
        """The messages of a list that the host stores."""
        prompt = self.prompt_of(messages)
        return [
            m
            for m in messages
            if m is not prompt
            and not (m.__pydantic_private__["_no_save"] and m.role in UNSAVED_ROLES)
        ]

    def prompt_of(self, messages: Sequence[Any]) -> Any:
        """The system message that the host does not store, or None."""
        return next((m for m in messages if m.role == "system"), None)

    def normalised(self, history: list[dict[str, Any]]) -> list[dict[str, Any]] | None:
        """A stored history as the host would store it again; None if it cannot load it."""
        try:
            return dump_messages_with_checkpoints(bind_checkpoint_messages(history))
        except (ValueError, TypeError, KeyError, AttributeError):
            return None

    def bound(self, history: list[dict[str, Any]]) -> list[Any] | None:
        """A stored history as the host's messages; None if it cannot load it."""
        try:
            return bind_checkpoint_messages(history)
        except (ValueError, TypeError, KeyError, AttributeError):
            return None

    # Conversations

    @contextlib.asynccontextmanager
    async def session_lock(self, session_id: str) -> AsyncIterator[None]:
        """The lock under which the host itself handles a session's requests."""
        async with session_lock_manager.acquire_lock(session_id):
            yield

    async def current_conversation_id(self, session_id: str) -> str | None:
        """The conversation a session uses now, or None."""
        manager = self._context.conversation_manager
        return await manager.get_curr_conversation_id(session_id) or None

    async def load_history(self, session_id: str) -> tuple[str | None, list[dict[str, Any]]]:
        """Id and stored messages of a session's current conversation."""
        conversation_id = await self.current_conversation_id(session_id)
        if not conversation_id:
            return None, []
        history = await self.load_conversation(session_id, conversation_id)
        return (None, []) if history is None else (conversation_id, history)

    async def load_conversation(
        self, session_id: str, conversation_id: str
    ) -> list[dict[str, Any]] | None:
        """Stored messages of one conversation; None if it does not exist."""
        if (get_db := self._host_database()) is not None:
            # As text: the host's own way parses and writes it anew on the event loop.
            query = select(type_coerce(ConversationV2.content, Text)).where(
                ConversationV2.conversation_id == conversation_id
            )
            async with get_db() as db:
                found = (await db.execute(query)).first()
            history = found[0] or "[]" if found else None
        else:
            manager = self._context.conversation_manager
            conversation = await manager.get_conversation(session_id, conversation_id)
            history = conversation.history or "[]" if conversation else None
        if history is None:
            return None
        if isinstance(history, str):
            # Long chats are megabytes of JSON: not on the event loop.
            history = await asyncio.to_thread(json.loads, history)
        return [m for m in history or [] if isinstance(m, dict)]

    def _host_database(self) -> Any:
        """What opens a session of the host's database; None if it is not as expected."""
        manager = self._context.conversation_manager
        return getattr(getattr(manager, "db", None), "get_db", None) if ConversationV2 else None

    async def save_conversation(
        self,
        session_id: str,
        conversation_id: str,
        history: list[dict[str, Any]] | None,
    ) -> None:
        """Stores a history (None: as it is) and forgets the stored token usage."""
        await self._context.conversation_manager.update_conversation(
            session_id, conversation_id, history=history, token_usage=0
        )

    async def list_conversations(self, session_id: str) -> list[HostConversation]:
        """The conversations of a session, without what was said in them."""
        if (get_db := self._host_database()) is None:
            manager = self._context.conversation_manager
            return [
                HostConversation(c.cid, session_id, c.title or "", c.created_at, c.updated_at)
                for c in await manager.get_conversations(unified_msg_origin=session_id)
            ]
        columns = ("conversation_id", "title", "created_at", "updated_at")
        query = select(*(getattr(ConversationV2, name) for name in columns))
        async with get_db() as db:
            rows = (await db.execute(query.where(ConversationV2.user_id == session_id))).all()
        return [
            HostConversation(key, session_id, title or "", _seconds(created), _seconds(updated))
            for key, title, created, updated in rows
        ]

    async def new_conversation(
        self, session_id: str, history: list[dict[str, Any]], title: str, make_current: bool
    ) -> str:
        """Makes a conversation of a session; returns its id."""
        manager = self._context.conversation_manager
        current = await self.current_conversation_id(session_id)
        conversation_id = await manager.new_conversation(
            session_id, session_id.partition(":")[0], content=history, title=title
        )
        if not make_current and current:
            # The host makes every new conversation the current one.
            await manager.switch_conversation(session_id, current)
        return conversation_id

    async def session_exists(self, session_id: str) -> bool:
        """Whether the host holds a conversation of this session."""
        manager = self._context.conversation_manager
        return bool(await manager.get_conversations(unified_msg_origin=session_id))

    # Models

    async def _using_provider(self, session_id: str) -> Any:
        lookup = getattr(self._context, "get_using_provider_async", None)
        try:
            if lookup is not None:
                return await lookup(session_id)
            return self._context.get_using_provider(session_id)
        except ValueError:
            # The host raises it when the chosen provider is not a chat model.
            return None

    async def current_chat_provider(self, session_id: str) -> ChatProvider | None:
        """The chat model a session uses now, or None."""
        return self._described(await self._using_provider(session_id))

    async def request_providers(self, event: Any) -> list[ChatProvider]:
        """The chat model of a running request, as far as it can be known, and its fallbacks."""
        chosen = event.get_extra("selected_provider")
        if not isinstance(chosen, str) or not chosen:
            return await self.session_providers(event.unified_msg_origin)
        provider = self._described(self._context.get_provider_by_id(chosen))
        model = event.get_extra("selected_model")
        if provider is not None and isinstance(model, str) and model:
            provider = replace(provider, model=model)
        return self._with_fallbacks(provider, event.unified_msg_origin)

    async def session_providers(self, session_id: str) -> list[ChatProvider]:
        """The chat model a session uses now and its fallbacks, in order; empty if none."""
        return self._with_fallbacks(await self.current_chat_provider(session_id), session_id)

    def _with_fallbacks(self, provider: ChatProvider | None, session_id: str) -> list[ChatProvider]:
        if provider is None:
            return []
        found = [provider]
        for provider_id in fallback_ids(self._context.get_config(session_id)):
            fallback = self._described(self._context.get_provider_by_id(provider_id))
            if fallback is not None and fallback.provider_id not in {p.provider_id for p in found}:
                found.append(fallback)
        return found

    def chat_provider(self, provider_id: str) -> ChatProvider | None:
        """A chat model by its id, or None."""
        return self._described(self._context.get_provider_by_id(provider_id))

    def _described(self, provider: Any) -> ChatProvider | None:
        config = getattr(provider, "provider_config", None)
        if not isinstance(config, dict):
            return None
        limit = config.get("max_context_tokens")
        return ChatProvider(
            str(config.get("id") or ""),
            str(provider.get_model() or ""),
            limit if isinstance(limit, int) and limit > 0 else 0,
        )

    async def generate(
        self, session_id: str, provider: ChatProvider, system_prompt: str, prompt: str
    ) -> LLMAnswer:
        """Asks a model once; raises whatever the provider raises."""
        answer = await self._context.llm_generate(
            chat_provider_id=provider.provider_id,
            prompt=prompt,
            system_prompt=system_prompt,
            model=provider.model or None,
            request_max_retries=1,  # The caller tries again, after its own pauses.
        )
        return described_answer(answer)

    async def persona(self, session_id: str, conversation_id: str) -> str:
        """The prompt of the role that the assistant plays in a conversation, or nothing."""
        manager = getattr(self._context, "persona_manager", None)
        resolve = getattr(manager, "resolve_selected_persona", None)
        if resolve is None:
            return ""
        try:
            conversation = await self._context.conversation_manager.get_conversation(
                session_id, conversation_id
            )
            found = await resolve(
                umo=session_id,
                conversation_persona_id=getattr(conversation, "persona_id", None),
                platform_name=session_id.partition(":")[0],
                provider_settings=self._context.get_config(session_id).get("provider_settings"),
            )
            return str((found[1] or {}).get("prompt") or "")
        except Exception as error:  # noqa: BLE001  a summary without its role is still one
            logger.debug("[context_manager] %s: no persona: %s", session_id, error)
            return ""

    def _embedding_provider(self) -> Any:
        lookup = getattr(self._context, "get_all_embedding_providers", None)
        providers = lookup() if lookup is not None else None
        return providers[0] if providers else None

    def embedding_model(self) -> str | None:
        """What makes embeddings now; None without an embedding provider."""
        provider = self._embedding_provider()
        if provider is None:
            return None
        config = provider.provider_config
        return f"{config.get('id', '')}/{config.get('embedding_model', '')}"

    async def embed(self, texts: list[str]) -> list[list[float]]:
        """Embeddings of texts; raises whatever the provider raises."""
        return await self._embedding_provider().get_embeddings(texts)

    # Tools

    @property
    def has_tools(self) -> bool:
        """Whether plugins can offer tools to models."""
        return FunctionTool is not None

    def make_tool(self, **values: Any) -> Any:
        """A tool in the host's form."""
        return FunctionTool(**values, handler_module_path=_MAIN)

    def add_tool(self, tool: Any) -> None:
        """Registers a tool for all sessions."""
        self._context.add_llm_tools(tool)
        tool.handler_module_path = _MAIN  # The host has put its own guess there.

    def remove_tool(self, name: str) -> None:
        """Takes a tool back."""
        self._context.get_llm_tool_manager().remove_func(name)

    # Sessions and people

    async def send_text(self, session_id: str, text: str) -> bool:
        """Says something in a chat unasked; False if its platform cannot."""
        if MessageChain is None:
            return False
        try:
            return bool(await self._context.send_message(session_id, MessageChain().message(text)))
        except Exception as error:  # noqa: BLE001  platform adapters raise anything
            logger.debug("[context_manager] %s: nothing sent: %s", session_id, error)
            return False

    def session_of(self, event: Any) -> tuple[str, str, str]:
        """``(session_id, display_name, platform)`` of an event; the name may be empty."""
        if event.get_group_id():
            # Only what came with the message: asking the platform delays the reply.
            group = getattr(event.message_obj, "group", None)
            name = str(getattr(group, "group_name", None) or "")
        else:
            name = str(event.get_sender_name() or "")
        return event.unified_msg_origin, "" if name == "N/A" else name, event.get_platform_id()

    def sender_of(self, event: Any) -> str:
        """The name of the person an event is from, or their id."""
        return str(event.get_sender_name() or event.get_sender_id() or "")

    def is_addressed(self, event: Any) -> bool:
        """Whether a message was meant for the bot."""
        return bool(event.is_at_or_wake_command)

    async def _group(self, event: Any) -> Any:
        """The group of an event as the platform describes it; None if it does not."""
        try:
            async with asyncio.timeout(GROUP_LOOKUP_SECONDS):
                return await event.get_group()
        except Exception as error:  # noqa: BLE001  platform adapters raise anything
            logger.debug(
                "[context_manager] no group data for %s: %s", event.unified_msg_origin, error
            )
            return None

    async def is_operator(self, event: Any) -> bool:
        """Whether the sender may spend tokens and change memory in this chat."""
        if event.is_admin() or not event.get_group_id():
            return True
        raw = getattr(event.message_obj, "raw_message", None)
        sender = raw.get("sender") if hasattr(raw, "get") else None
        if isinstance(sender, dict) and sender.get("role") in ("owner", "admin"):
            return True
        group = await self._group(event)
        sender_id = str(event.get_sender_id())
        return sender_id == str(getattr(group, "group_owner", None)) or sender_id in map(
            str, getattr(group, "group_admins", None) or []
        )

    # Settings

    def remote_agent(self, session_id: str) -> bool:
        """Whether a remote agent (Dify, Coze …) answers a session and keeps its history."""
        config = self._context.get_config(session_id)
        runner = (config.get("agent_runner") or {}).get("runner_type")
        if runner is None:
            runner = (config.get("provider_settings") or {}).get("agent_runner_type")
        return isinstance(runner, str) and runner not in ("", "local")

    def settings_warnings(self) -> list[dict[str, str]]:
        """Host settings that work against the plugin, as ``{code, message}``."""
        warnings = []
        for profile, config in self._configs():
            strategy, turns = context_settings(config)
            if strategy is not None and strategy != "truncate_by_turns":
                warnings.append(warning("host_strategy", strategy, profile))
            if isinstance(turns, int) and turns >= 0:
                warnings.append(warning("host_turn_limit", turns, profile))
        if self.missing_features:
            warnings.append(warning("host_features", ", ".join(self.missing_features)))
        return warnings

    def _configs(self) -> list[tuple[str, Any]]:
        """The host's configurations; the default one first, without a name."""
        configs = [("", self._context.get_config())]
        manager = getattr(self._context, "astrbot_config_mgr", None)
        profiles = getattr(manager, "confs", None) or {}
        if len(profiles) > 1:
            names = {info["id"]: info["name"] for info in manager.get_conf_list()}
            configs += [
                (str(names.get(key, key)), config)
                for key, config in profiles.items()
                if key != "default"
            ]
        return configs


def _seconds(moment: datetime) -> float:
    """Unix seconds of a time of the host, which it stores in UTC without saying so."""
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
