"""The plugin as AstrBot sees it: hooks, commands, routes, life cycle.

Translates between the host and the plugin's modules and decides nothing.
Every hook lets the chat go on whatever happens; after the start of
``terminate`` no hook of this instance does anything.
"""

import asyncio
import contextlib
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from astrbot.api import logger
from astrbot.api.event import AstrMessageEvent, filter
from astrbot.api.star import Context, Star, StarTools

from . import search_index
from .archive import Archive
from .archive_reader import ArchiveReader
from .archiving import Archivist
from .auto_compression import AutoCompression
from .command_memory import MemoryCommand
from .commands_history import ConversationCommands
from .compression import Compressor
from .errors import StorageUnavailable
from .history import History
from .host import Host
from .memories import LongTermMemory
from .memory_request import Recaller
from .memory_tools import MemoryTools
from .recovery import repair_left_behind
from .request_flow import RequestFlow
from .request_log import RequestLog
from .search_chat import ChatSearch
from .settings import Settings
from .status import change_topic, status_of
from .storage import Storage
from .texts import LANGUAGES, Texts
from .tokens import TokenCounter
from .tool_shelf import Tool, ToolShelf
from .web import PLUGIN_NAME, register_routes

VERSION = "0.1.0"
DATABASE_NAME = "context_manager.db"
# The host's hooks may fire before initialize() has ended.
READY_SECONDS = 5
# A hook that has begun takes milliseconds; one that hangs must not hold a reload up.
STEP_SECONDS = 5
FIRST, LAST = sys.maxsize, -sys.maxsize


class ContextManagerPlugin(Star):
    """Fixed memory, AI summary and a budgeted window for every chat on its own."""

    def __init__(self, context: Context, config: Any = None) -> None:
        super().__init__(context)
        self.context = context
        self.settings = Settings.from_config(config or {})
        self.setting_problems = Settings.problems(config or {})
        self.texts = Texts(self.settings.language)
        self.tokens = TokenCounter()
        self.host = Host(context, self.tokens)
        self.storage: Storage | None = None
        self.compressor: Compressor | None = None
        self.automatic: AutoCompression | None = None
        self.flow: RequestFlow | None = None
        self.archivist: Archivist | None = None
        self.history: History | None = None
        self.conversations: ConversationCommands | None = None
        self.search: ChatSearch | None = None
        self.memory: LongTermMemory | None = None
        self.memory_command: MemoryCommand | None = None
        self.shelf: ToolShelf | None = None
        self.closed = False
        self.version = VERSION
        self._ready = asyncio.Event()
        self._steps: set[asyncio.Future[None]] = set()
        # Closes in reverse order what was opened, also where one of them fails.
        self._closing = contextlib.AsyncExitStack()
        register_routes(context, self)

    async def initialize(self) -> None:
        """Opens the database and starts loading the token vocabulary."""
        path = StarTools.get_data_dir(PLUGIN_NAME) / DATABASE_NAME
        self.storage = await Storage.open(path, self.settings)
        self._closing.push_async_callback(self.storage.close)
        self._closing.push_async_callback(_ended, asyncio.create_task(self.tokens.load()))
        log = RequestLog(self.storage.database)
        self._closing.push_async_callback(log.settle)
        self.flow = RequestFlow(self.host, self.tokens, self.settings, self.storage, time.time, log)
        await self.flow.estimates.load_limits()
        self._closing.push_async_callback(self.flow.estimates.settle)
        await self._keep_everything(self.storage)
        self._start_compression(self.storage, self.flow)
        await self._start_memory(self.storage, self.flow)
        self._ready.set()
        for warning in self.host.settings_warnings():
            logger.warning("[context_manager] %s", warning["message"])

    async def _keep_everything(self, storage: Storage) -> None:
        """Opens journal and archive; what a crash left short is repaired in the background."""
        cuts = self.flow.cuts
        with contextlib.suppress(StorageUnavailable):
            await cuts.journal.load()
        self._closing.push_async_callback(_cancelled, await search_index.start(storage.database))
        self.search = ChatSearch(storage.database, self.texts)
        archive, host = Archive(storage.database), self.host
        cuts.archivist = self.archivist = Archivist(
            archive, host, storage, cuts.journal, cuts.is_cut, cuts.whole_conversation
        )
        self._closing.push_async_callback(self.archivist.close)
        self.history = History(ArchiveReader(storage.database), self.archivist, self.host)
        self.conversations = ConversationCommands(self.history, self.texts)
        recovering = asyncio.create_task(repair_left_behind(self.host, cuts.journal))
        self._closing.push_async_callback(_cancelled, recovering)

    def _start_compression(self, storage: Storage, flow: RequestFlow) -> None:
        load = flow.cuts.whole_history
        self.compressor = Compressor(
            storage, self.host, self.tokens, self.settings, load_history=load
        )
        self.automatic = AutoCompression(
            storage,
            self.compressor,
            self.texts,
            load_history=load,
            say=self.host.send_text,
        )
        self._closing.push_async_callback(self.compressor.close)
        self._closing.push_async_callback(self.automatic.close)
        flow.after_save = self.automatic.after_save

    async def _start_memory(self, storage: Storage, flow: RequestFlow) -> None:
        self.memory = LongTermMemory(storage, self.host, self.settings)
        self._closing.push_async_callback(self.memory.close)
        self.memory_command = MemoryCommand(self.memory, storage, self.host, self.texts)
        flow.recaller = Recaller(self.memory, self.host, self.settings)
        flow.shelf = self.shelf = ToolShelf(
            self.host, storage, self.settings.language, self._tools(storage)
        )
        self._closing.callback(self.shelf.close)
        await self.shelf.refresh()

    def _tools(self, storage: Storage) -> dict[str, list[Tool]]:
        """The tools for models in every language; none where the host has none."""
        if not self.host.has_tools:
            return {language: [] for language in LANGUAGES}
        return {
            language: [
                *MemoryTools(self.memory, Texts(language)).tools(),
                *ChatSearch(storage.database, Texts(language)).tools(),
            ]
            for language in LANGUAGES
        }

    async def terminate(self) -> None:
        """Stops everything; requests that run stay cut and are repaired after their save."""
        self.closed = True
        if self.flow is not None:
            self.flow.close()
        if self._steps:
            # A request that is just being cut needs the journal for it.
            await asyncio.wait(self._steps, timeout=STEP_SECONDS)
        await self._closing.aclose()

    # Requests

    @filter.on_llm_request(priority=LAST)
    async def prepare_request(self, event: AstrMessageEvent, req: Any) -> None:
        """Notes the session and the conversation the request saves to."""
        if await self._active():
            await self._guarded(event, self.flow.prepare(event, req))

    @filter.on_agent_begin(priority=LAST)
    async def build_request(self, event: AstrMessageEvent, run_context: Any) -> None:
        """Builds what is sent."""
        if await self._active():
            await self._guarded(event, self.flow.build(event, run_context))

    @filter.on_agent_done(priority=FIRST)
    async def restore_history(
        self, event: AstrMessageEvent, run_context: Any, response: Any
    ) -> None:
        """Gives the host the whole history back before it saves."""
        if await self._active():
            await self._guarded(event, self.flow.finish(event, run_context, response))

    # Of a hook before the sending the host warns with every streamed reply.
    @filter.after_message_sent()
    async def see_result(self, event: AstrMessageEvent) -> None:
        """Learns from the error of a model whose context was too long."""
        if not self.closed and self.flow is not None:
            self.flow.see_result(event)

    @filter.event_message_type(filter.EventMessageType.GROUP_MESSAGE)
    async def see_group_message(self, event: AstrMessageEvent) -> None:
        """Counts messages in groups whose topics may end by themselves."""
        if not self.closed and self.flow is not None:
            await self.flow.see_group_message(event)

    async def _active(self) -> bool:
        if not self.closed and not self._ready.is_set():
            try:
                await asyncio.wait_for(self._ready.wait(), READY_SECONDS)
            except TimeoutError:
                logger.warning("[context_manager] not ready yet; this request is left as it is")
        return not self.closed and self._ready.is_set()

    async def _guarded(self, event: AstrMessageEvent, step: Awaitable[None]) -> None:
        started = time.perf_counter()
        ended = asyncio.get_running_loop().create_future()
        self._steps.add(ended)
        try:
            await step
        except Exception:  # noqa: BLE001  the border to the host
            logger.exception(
                "[context_manager] %s: request left as the host made it",
                event.unified_msg_origin,
            )
            self.flow.fail(event)
        finally:
            self._steps.discard(ended)
            ended.set_result(None)
        self.flow.spent(event, time.perf_counter() - started)

    # Commands

    @filter.command("立即压缩", alias={"context_compress", "compress_context"})
    async def compress(self, event: AstrMessageEvent):
        """把本会话的历史压缩成 AI 摘要，可以带上要特别关注的内容"""
        if not await self._may_use(event):
            yield event.plain_result(self.texts.get("not_allowed"))
            return
        if not await self._active():
            yield event.plain_result(self.texts.get("storage_unavailable"))
            return
        await self._guarded(event, self.flow.see_session(event))
        provider = next(iter(await self.host.request_providers(event)), None)
        async for line in self.compressor.report(
            event.unified_msg_origin, _words_of(event), provider=provider
        ):
            yield event.plain_result(line)

    @filter.command("历史会话", alias={"conversations"})
    async def list_conversations(self, event: AstrMessageEvent):
        """列出本会话以前的对话"""
        yield event.plain_result(await self._answer(lambda: self.conversations.show(event)))

    @filter.command("恢复会话", alias={"resume_conversation"})
    async def resume_conversation(self, event: AstrMessageEvent):
        """把本会话以前的一个对话恢复为当前对话，后面写它在 /历史会话 里的序号"""
        if not await self._may_use(event):
            yield event.plain_result(self.texts.get("not_allowed"))
            return
        yield event.plain_result(await self._answer(lambda: self.conversations.resume(event)))

    @filter.command("搜索历史", alias={"search_history"})
    async def search_history(self, event: AstrMessageEvent):
        """在本会话过去的全部消息里搜索"""
        session_id, query = event.unified_msg_origin, _words_of(event)
        yield event.plain_result(await self._answer(lambda: self.search.command(session_id, query)))

    @filter.command("上下文状态", alias={"context_status"})
    async def context_status(self, event: AstrMessageEvent):
        """上一次请求发送了什么、省略了什么、用量和缓存命中"""
        session_id = event.unified_msg_origin
        yield event.plain_result(await self._answer(lambda: self._status(session_id)))

    @filter.command("新话题", alias={"new_topic"})
    async def new_topic(self, event: AstrMessageEvent):
        """从这里开始新话题：更早的对话不再发送，历史不会删除；加“撤销”取回"""
        if not await self._may_use(event):
            yield event.plain_result(self.texts.get("not_allowed"))
            return
        undo = _words_of(event).lower() in ("撤销", "undo")
        session_id = event.unified_msg_origin
        yield event.plain_result(await self._answer(lambda: self._topic(session_id, undo)))

    async def _status(self, session_id: str) -> str:
        return await status_of(self.flow, self.texts, session_id)

    async def _topic(self, session_id: str, undo: bool) -> str:
        return self.texts.get(await change_topic(self.flow, session_id, undo))

    async def _answer(self, make: Callable[[], Awaitable[str]]) -> str:
        """The text of a command; says so if the database cannot be used."""
        if await self._active():
            with contextlib.suppress(StorageUnavailable):
                return await make()
        return self.texts.get("storage_unavailable")

    @filter.command("记忆", alias={"context_memory"})
    async def remember(self, event: AstrMessageEvent):
        """列出、添加、删除本会话的长期记忆"""
        words = _words_of(event)
        if MemoryCommand.changes(words) and not await self._may_use(event):
            yield event.plain_result(self.texts.get("not_allowed"))
            return
        if not await self._active():
            yield event.plain_result(self.texts.get("storage_unavailable"))
            return
        yield event.plain_result(await self.memory_command.answer(event, words))

    async def _may_use(self, event: AstrMessageEvent) -> bool:
        return self.settings.commands_open_to_everyone or await self.host.is_operator(event)


def _words_of(event: AstrMessageEvent) -> str:
    """What stands behind a command; the host takes any blank for the one between them."""
    return "".join(event.message_str.split(maxsplit=1)[1:]).strip()


async def _ended(task: asyncio.Task[Any]) -> None:
    await asyncio.gather(task, return_exceptions=True)


async def _cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await _ended(task)
