"""The tools that the plugin offers to models.

Invariants:

* A tool is registered with the host only while a session has it on, and taken back
  when the plugin stops.
* A request of a session that has it off never offers it, and its handler refuses there.
* The session is the event's. No argument of a model chooses another one.
* A tool answers, whatever it was given; what goes wrong is logged and told to the model.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .errors import ContextManagerError, StorageUnavailable
from .host import Host
from .storage import Session, Storage
from .texts import Texts

logger = logging.getLogger("astrbot")


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool.

    Attributes:
        name: Its name, the same in every language.
        option: The option of a session that turns it on.
        description: When to use it, as the model reads it.
        properties: JSON schemas of its arguments by name.
        required: The arguments that must be given.
        run: Called with the session, the host's event and the arguments.
    """

    name: str
    option: str
    description: str
    properties: dict[str, dict[str, Any]]
    required: tuple[str, ...]
    run: Callable[[Session, Any, dict[str, Any]], Awaitable[str]]

    @property
    def parameters(self) -> dict[str, Any]:
        """The JSON schema of all arguments."""
        return {
            "type": "object",
            "properties": self.properties,
            "required": list(self.required),
        }


class ToolShelf:
    """Offers the tools where they are on."""

    def __init__(self, host: Host, storage: Storage, texts: Texts, tools: Sequence[Tool]) -> None:
        self._host = host
        self._storage = storage
        self._texts = texts
        self._tools = tools
        self._registered: set[str] = set()
        self._closed = False

    async def refresh(self) -> None:
        """Registers what is on in a session or for new ones, and takes back the rest."""
        try:
            used = await self._storage.options_in_use({tool.option for tool in self._tools})
        except StorageUnavailable:
            return
        for tool in self._tools:
            if tool.option in used:
                self._register(tool)
            elif tool.name in self._registered:
                self._registered.discard(tool.name)
                self._host.remove_tool(tool.name)

    def _register(self, tool: Tool) -> None:
        if tool.name not in self._registered and not self._closed:
            self._registered.add(tool.name)
            self._host.add_tool(tool.name, tool.description, tool.parameters, self._handler(tool))

    def fit(self, request: Any, session: Session | None) -> None:
        """Makes a request offer the tools its session has on, and no others."""
        offered = getattr(request, "func_tool", None)
        for tool in self._tools:
            if session is not None and getattr(session, tool.option):
                if tool.name not in self._registered:
                    self._register(tool)
                    self._host.offer_tool(request, tool.name)
            # Some hosts hand over the manager of all sessions' tools: not ours to change.
            elif hasattr(offered, "tools"):
                offered.remove_tool(tool.name)

    def close(self) -> None:
        """Takes all tools back; none is registered any more."""
        self._closed = True
        for name in self._registered:
            self._host.remove_tool(name)
        self._registered.clear()

    def _handler(self, tool: Tool) -> Callable[..., Awaitable[str]]:
        async def handle(event: Any, **arguments: Any) -> str:
            session_id = event.unified_msg_origin
            try:
                session = await self._storage.get_session(session_id)
                if self._closed or session is None or not getattr(session, tool.option):
                    return self._texts.get("tool_off")
                return await tool.run(session, event, arguments)
            except ContextManagerError as error:
                return self._texts.get("tool_failed", error=error)
            except Exception as error:
                # The border to the model: it gets an answer, and the chat goes on.
                logger.exception("[context_manager] %s: %s failed", session_id, tool.name)
                return self._texts.get("tool_failed", error=type(error).__name__)

        return handle
