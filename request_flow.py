"""One request from the host's hooks to its saved conversation.

``prepare`` notes which conversation a request saves to, ``build`` puts the
projection in place, ``finish`` takes it away again. Invariants:

* The host's list is replaced in one step, after everything that can fail.
* Whatever way a request ends, its pipeline task's done-callback has the saved list
  checked.
* Neither the database nor the vocabulary can stop a cut.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from .bounded import BoundedMap
from .calibration import Counts, add
from .calibration_store import CalibrationStore
from .context_logic import (
    Projection,
    Report,
    build,
    history_of,
    with_sections,
)
from .conversation_state import ConversationState, limits_of
from .errors import StorageUnavailable
from .host import Host
from .host_answers import failure_text, reported_usage
from .host_types import host_limit
from .journal import Journal
from .memory_request import Recaller
from .open_cuts import OpenCuts
from .prompt_estimates import PromptEstimates
from .request_log import RequestLog
from .request_record import head_of, record_of
from .request_state import RequestState, SavedRequest
from .run_usage import RunUsage, learn_from_answer, learn_from_failure, sample_of
from .settings import Settings
from .storage import Session, Storage
from .tokens import TokenCounter
from .tool_shelf import ToolShelf

logger = logging.getLogger("astrbot")

STATE_KEY = "_context_manager_request"
# Repairs outlive the plugin instance: a reload must not cancel them.
_repairs: set[asyncio.Task[None]] = set()


@dataclass(slots=True)
class RequestFlow:
    """Builds, restores and repairs the requests of one plugin instance.

    ``after_save`` is called, and not waited for, once a request is stored whole.
    """

    host: Host
    tokens: TokenCounter
    settings: Settings
    storage: Storage
    clock: Any
    log: RequestLog
    recaller: Recaller | None = None
    shelf: ToolShelf | None = None
    counters: Counter[str] = field(default_factory=Counter)
    closed: bool = False
    after_save: Callable[[SavedRequest], None] | None = None
    heads: BoundedMap = field(init=False)
    reports: BoundedMap = field(init=False)
    cuts: OpenCuts = field(init=False)
    conversations: ConversationState = field(init=False)
    estimates: PromptEstimates = field(init=False)
    _sessions: BoundedMap = field(init=False)
    _running: Counter[str] = field(default_factory=Counter)
    _no_list_reported: bool = False

    def __post_init__(self) -> None:
        self.heads, self.reports, self._sessions = (self._map() for _ in range(3))
        self.cuts = OpenCuts(self.host, Journal(self.storage.database, self.clock))
        self.conversations = ConversationState(self.host, self.storage, self.log, self._map)
        store = CalibrationStore(self.storage.database)
        self.estimates = PromptEstimates(self.tokens, store, self.clock, self._map())

    def _map(self) -> BoundedMap:
        """Memory of sessions or conversations; those with a running request stay."""
        settings = self.settings
        idle_seconds = settings.remembered_minutes * 60
        return BoundedMap(
            settings.remembered_sessions, idle_seconds, lambda key: key in self._running
        )

    def close(self) -> None:
        """The instance ends; what it has cut is still repaired."""
        self.closed = self.cuts.closed = True

    async def prepare(self, event: Any, request: Any) -> None:
        """Before the agent is built: the session exists, the conversation is known."""
        conversation = getattr(request, "conversation", None)
        conversation_id = getattr(conversation, "cid", None) or None
        state = self._begin(event, conversation_id, request)
        await self._see(event, state)
        if self.shelf is not None:
            self.shelf.fit(request, self._sessions.get(state.session_id))
        if self.host.missing_features or self._no_list_reported:
            await self._inject_sections(state)

    async def see_session(self, event: Any) -> None:
        """The session of an event has a row, with its name and platform as seen now."""
        await self._note_seen(*self.host.session_of(event))

    async def _see(self, event: Any, state: RequestState) -> None:
        """Reads the session; a known one is noted as seen only after the reply."""
        session_id, name, platform = self.host.session_of(event)
        known = session_id in self._sessions and await self._session(session_id)
        if known and known.platform == platform and name in ("", known.display_name):
            state.seen = (session_id, name, platform)
        else:
            await self._note_seen(session_id, name, platform)

    async def _note_seen(self, session_id: str, name: str, platform: str) -> None:
        seen = self.storage.see_session(session_id, name, platform, int(self.clock()))
        await self._stored(session_id, seen)

    async def build(self, event: Any, run_context: Any) -> None:
        """At the agent's start: puts the built request into the run's list."""
        state = await self._state_to_build(event, run_context)
        if state is None or self.host.missing_features:
            return
        messages = getattr(run_context, "messages", None)
        if not isinstance(messages, list):
            self._report_no_list()
            await self._inject_sections(state)
            return
        if not messages:
            # A remote agent keeps its own history and reads the prompt from here.
            await self._inject_sections(state)
            return
        await self.cuts.mend(state, messages)
        projection = await self._project(event, state, messages)
        state.projection, state.run_context = projection, run_context
        if state.recalled is not None:
            state.recalled.attach()
        await self.cuts.begin(state)
        messages[:] = projection.messages
        self._distrust_token_usage(state)
        self.counters["requests"] += 1
        self._log_cut(state, projection.report, self.reports.get(state.session_id))
        self.reports[state.session_id] = projection.report
        if state.request is not None:
            if state.conversation_id is not None:
                head = head_of(projection, state.usage.beside, state.measured.at)
                self.heads[state.session_id] = head
            await self.conversations.remember_window(
                state.session_id, state.conversation_id, projection.mark
            )

    async def finish(self, event: Any, run_context: Any, response: Any = None) -> None:
        """At the agent's end: the run's list is whole again."""
        state = self._state(event)
        if state is None or state.projection is None or run_context is not state.run_context:
            return
        final = list(run_context.messages)
        if state.recalled is not None:
            state.recalled.detach()
        run_context.messages[:] = state.projection.restore(final)
        state.restored = True
        state.measured.usage = reported_usage(response)
        if state.conversation_id is None:
            self._record(state)
        learn_from_answer(self.estimates, state.usage, state.projection, final, response)

    def _record(self, state: RequestState) -> None:
        """Notes what a finished request held and cost, in the background."""
        measured, run_context = state.measured, state.run_context
        if run_context is None:
            return
        projection, final = state.projection, list(run_context.messages)
        size = state.usage.size(self.tokens)
        self.log.write_later(lambda: record_of(state.session_id, projection, measured, final, size))

    def see_result(self, event: Any) -> None:
        """What was sent to the chat may be a provider's error."""
        state = self._state(event)
        if state is not None and state.projection is not None and state.usage is not None:
            text = failure_text(event)
            final = list(state.run_context.messages)
            learn_from_failure(self.estimates, state.usage, state.projection, final, text)

    def spent(self, event: Any, seconds: float) -> None:
        """A request waited that long for one of its hooks."""
        state = self._state(event)
        if state is not None:
            state.measured.milliseconds += seconds * 1000

    def fail(self, event: Any) -> None:
        """A request of ours failed: it goes out as the host made it."""
        self.counters["failures"] += 1
        state = self._state(event)
        if state is not None:
            state.failed = True
            self._distrust_token_usage(state)

    def _begin(self, event: Any, conversation_id: str | None, request: Any) -> RequestState:
        state = RequestState(self, event.unified_msg_origin, conversation_id, request)
        state.sender = self.host.sender_of(event)
        state.measured.at = int(self.clock())
        event.set_extra(STATE_KEY, state)
        task = asyncio.current_task()
        if task is not None:
            self._running.update(state.held)
            task.add_done_callback(lambda _: self._after_task(event, state))
        return state

    async def _state_to_build(self, event: Any, run_context: Any) -> RequestState | None:
        """The state of the run that begins; None if it is not ours to change.

        Without a prepared state this is a scheduled agent, which saves nothing, or
        the plugin was switched on after the host had prepared the request: so the
        conversation is looked up, and checked like any other afterwards.
        """
        known = event.get_extra(STATE_KEY)
        if known is None:
            conversation_id = await self.host.current_conversation_id(event.unified_msg_origin)
            return self._begin(event, conversation_id, None)
        if known.owner is not self:
            # The plugin was reloaded; the instance before it has built this run or none.
            built = known.run_context is not None
            return None if built else self._begin(event, known.conversation_id, known.request)
        # A second run within one event belongs to another plugin.
        return known if known.run_context in (None, run_context) else None

    def _state(self, event: Any) -> RequestState | None:
        state = event.get_extra(STATE_KEY)
        return state if getattr(state, "owner", None) is self else None

    async def _session(self, session_id: str) -> Session | None:
        await self._stored(session_id, self.storage.get_session(session_id))
        return self._sessions.get(session_id)

    async def _stored(self, session_id: str, read: Awaitable[Session | None]) -> None:
        """Takes over a session as stored; the last known one stays on failure."""
        try:
            session = await read
        except StorageUnavailable:
            return
        if session is not None:
            self._sessions[session_id] = session

    async def _project(self, event: Any, state: RequestState, messages: list[Any]) -> Projection:
        # The first hook of a request has just read it.
        prepared = state.request is not None and state.session_id in self._sessions
        session = self._sessions.get(state.session_id)
        if not prepared:
            session = await self._session(state.session_id)
        providers = await self.host.request_providers(event)
        state.provider = next(iter(providers), None)
        state.measured.model = state.provider.model if state.provider else ""
        conversation_id = state.conversation_id if state.request else None
        history = history_of(messages)
        now = int(self.clock())
        await self.conversations.begin_idle_topic(session, conversation_id, history, now)
        tools = self._tools(state.request)
        sample = sample_of(self.tokens, messages, tools)
        estimate = await self.estimates.estimate(providers, conversation_id, sample)
        # Of a run whose tools are not known, as a scheduled agent's, nothing is learned.
        state.usage = RunUsage(estimate, tools, settled=state.request is None)
        remembered = await self.conversations.of(session, conversation_id, history)
        values, most = session or self.settings, host_limit(providers)
        limits = limits_of(values, self.settings, most, estimate)
        for_host = limits.host_limit is not None
        measure = self.host.measured_by(estimate, for_host=for_host)
        projection = build(
            messages,
            fixed_memory=session.fixed_memory if session else "",
            summary=session.summary if session else "",
            limits=limits,
            mark=remembered.mark,
            topic=remembered.topic,
            covered=remembered.covered,
            tool_tokens=estimate.tokens(state.usage.beside),
            measure=measure,
            make_message=self.host.make_message,
        )
        if self.recaller is not None:
            recall = self.recaller.recall(event, session, projection, limits, measure)
            state.recalled = await recall
        if state.recalled is not None:
            recalled = self.tokens.counts_of_text(state.recalled.part.text)
            state.usage.beside = add(state.usage.beside, recalled)
        return projection

    def _tools(self, request: Any) -> Counts:
        tools = getattr(request, "func_tool", None)
        return self.tokens.counts_of_tools(tools.openai_schema() if tools else [])

    async def see_group_message(self, event: Any) -> None:
        """Counts a message of a group in which topics may end by themselves."""
        session_id = event.unified_msg_origin
        # Read anew: the page may have switched this on since the last request.
        session = await self._session(session_id)
        if session is not None:
            addressed, limit = self.host.is_addressed(event), session.topic_idle_messages
            await self.conversations.topics.count(session.session_id, addressed, limit)
            self.counters["group_messages"] += 1

    async def _inject_sections(self, state: RequestState) -> None:
        request = state.request
        if request is None or state.sections_sent:
            return
        session = await self._session(state.session_id)
        if session is not None:
            request.system_prompt = with_sections(
                request.system_prompt or "", session.fixed_memory, session.summary
            )
        state.sections_sent = True

    def _report_no_list(self) -> None:
        if not self._no_list_reported:
            self._no_list_reported = True
            self.host.missing_features.append("message list")
            logger.warning(
                "[context_manager] This AstrBot offers no message list at on_agent_begin: "
                "requests are not cut; fixed memory and summary are still injected."
            )

    def _distrust_token_usage(self, state: RequestState) -> None:
        """The host believes the last request's usage over its own estimate."""
        conversation = getattr(state.request, "conversation", None)
        if conversation is not None:
            conversation.token_usage = 0

    def _log_cut(self, state: RequestState, report: Report, previous: Report | None) -> None:
        if report.cut:
            logger.info(
                "[context_manager] %s: window cut, %d of %d turns sent, about %d of %d tokens",
                state.session_id,
                report.total_turns - report.left_out_turns,
                report.total_turns,
                report.estimated,
                report.budget,
            )
        if report.overrun and not (previous and previous.overrun):
            logger.warning(
                "[context_manager] %s: the request needs about %d tokens, %d over the budget "
                "of %d, without any history",
                state.session_id,
                report.estimated,
                report.overrun,
                report.budget,
            )

    def _after_task(self, event: Any, state: RequestState) -> None:
        """The pipeline's task ended; what the host saved is final now."""
        for key in state.held:
            self._running[key] -= 1
            if not self._running[key]:
                del self._running[key]
        if state.conversation_id is not None:
            self._record(state)
        task = asyncio.get_running_loop().create_task(self._repair_and_note(state))
        _repairs.add(task)
        task.add_done_callback(_repairs.discard)
        if not self.closed:
            # After a stream no hook tells how it ended; its result still stands.
            self.see_result(event)

    async def _repair_and_note(self, state: RequestState) -> None:
        built = state.projection is not None or state.failed
        if state.conversation_id is not None and built:
            self.counters["repairs"] += await self.cuts.settle(state)
            self._tell_saved(state)
        if state.seen is not None and not self.closed:
            await self._note_seen(*state.seen)

    def _tell_saved(self, state: RequestState) -> None:
        projection, usage = state.projection, state.measured.usage
        if self.after_save is None or self.closed or projection is None or state.request is None:
            return
        report = projection.report
        self.after_save(
            SavedRequest(
                state.session_id,
                state.conversation_id or "",
                report.left_out[1],
                max(report.estimated, usage.prompt_tokens if usage else 0),
                report.budget,
                state.provider,
                report.before_tail,
                report.left_out[0],
            )
        )
