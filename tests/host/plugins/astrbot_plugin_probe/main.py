"""Tools for scripted tool loops, and a look into the running host.

The tools cover every way a tool can end: with a result, with a huge one, with an
error, by answering the user itself, and after waiting for the test.
"""

import asyncio
import inspect
from pathlib import Path

from astrbot.api.event import AstrMessageEvent, MessageChain, filter
from astrbot.api.star import Context, Star
from astrbot.api.web import request
from astrbot.core.utils.session_lock import session_lock_manager

NAME = "astrbot_plugin_probe"
WATCHED_PLUGIN = "astrbot_plugin_context_manager"
GATES = Path("data/temp/gates")


class Probe(Star):
    """Registers the tools and the routes."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        GATES.mkdir(parents=True, exist_ok=True)
        context.register_web_api(f"/{NAME}/running", self.running, ["GET"], "Running work")
        context.register_web_api(f"/{NAME}/hold_lock", self.hold_lock, ["GET"], "Hold a lock")
        context.register_web_api(f"/{NAME}/use_model", self.use_model, ["GET"], "Use a model")
        self._holders: set[asyncio.Task] = set()

    async def running(self) -> dict:
        """Names what still runs for one session, repairs of the plugin included."""
        session_id = request.query.get("session_id")
        names = (_work_of(task, session_id) for task in asyncio.all_tasks())
        counts = session_lock_manager._get_loop_manager()._lock_count
        return {
            "running": [name for name in names if name],
            "at_lock": counts.get(session_id, 0),
        }

    async def hold_lock(self) -> dict:
        """Queues for a session's lock and keeps it for good once it gets it."""

        async def hold(session_id: str) -> None:
            async with session_lock_manager.acquire_lock(session_id):
                await asyncio.Event().wait()

        self._holders.add(asyncio.create_task(hold(request.query.get("session_id"))))
        return {"queued": True}

    async def use_model(self) -> dict:
        """From now on all chats use that model of their provider."""
        self.context.get_using_provider().set_model(request.query.get("model"))
        return {"used": True}

    @filter.llm_tool(name="lookup")
    async def lookup(self, event: AstrMessageEvent, text: str):
        """Looks something up and returns a short result.

        Args:
            text(string): What to look up.
        """
        return f"found: {text}"

    @filter.llm_tool(name="lookup_much")
    async def lookup_much(self, event: AstrMessageEvent, text: str):
        """Looks something up and returns about 500 tokens.

        Args:
            text(string): What to look up.
        """
        return f"found: {text} " + "detail of the finding, " * 70

    @filter.llm_tool(name="answer_user")
    async def answer_user(self, event: AstrMessageEvent, text: str):
        """Answers the user itself and returns nothing.

        Args:
            text(string): What to answer.
        """
        await event.send(MessageChain().message(f"tool answers: {text}"))

    @filter.llm_tool(name="broken_tool")
    async def broken_tool(self, event: AstrMessageEvent, text: str):
        """Fails.

        Args:
            text(string): Ignored.
        """
        raise RuntimeError("broken on purpose")

    @filter.llm_tool(name="wait_gate")
    async def wait_gate(self, event: AstrMessageEvent, text: str):
        """Waits until a file of that name appears.

        Args:
            text(string): Name of the gate.
        """
        (GATES / f"{text}.entered").touch()
        while not (GATES / f"{text}.open").exists():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        return f"gate {text} is open"


def _work_of(task: asyncio.Task, session_id: str | None) -> str:
    coroutine = task.get_coro()
    if not inspect.iscoroutine(coroutine) or coroutine.cr_frame is None:
        return ""
    name = coroutine.__qualname__
    if name == "PipelineScheduler.execute":
        event = coroutine.cr_frame.f_locals["event"]
        ours = session_id in (None, event.unified_msg_origin)
        return f"pipeline {event.unified_msg_origin}" if ours else ""
    if WATCHED_PLUGIN in coroutine.cr_code.co_filename and "repair" in name:
        return name
    return ""
