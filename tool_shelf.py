"""The tools that the plugin offers to models.

Invariants:

* A tool is registered with the host only while a session has it on, and taken back
  when the plugin stops.
* A request of a session that has it off never offers it, and its handler refuses there.
* A request gets the tools in the language of its conversation, on a tool set of its own;
  their answers are in the same one.
* The session is the event's. No argument of a model chooses another one.
* A tool answers, whatever it was given; what goes wrong is logged and told to the model.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .conversation_language import language_of
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
    """Offers the tools where they are on.

    Args:
        host: Where they are registered.
        storage: What is on in which session.
        language: The language that tools are registered in.
        tools: The same tools in every language.
    """

    def __init__(
        self, host: Host, storage: Storage, language: str, tools: Mapping[str, Sequence[Tool]]
    ) -> None:
        self._host = host
        self._storage = storage
        self._language = language
        self._tools = tools[language]
        self._made = {
            (tool.name, language): host.make_tool(
                name=tool.name,
                description=tool.description,
                parameters=tool.parameters,
                handler=self._handler(tool, Texts(language)),
            )
            for language, described in tools.items()
            for tool in described
        }
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
            self._host.add_tool(self._made[tool.name, self._language])

    def fit(self, request: Any, session: Session | None) -> None:
        """Makes a request offer the tools its session has on, and no others."""
        on = [t for t in self._tools if session is not None and getattr(session, t.option)]
        new = [tool.name for tool in on if tool.name not in self._registered]
        for tool in on:
            self._register(tool)
        offered = getattr(request, "func_tool", None)
        # Some hosts hand over the manager of all sessions' tools: not ours to change.
        if not hasattr(offered, "tools"):
            return
        for tool in self._tools:
            if tool not in on:
                offered.remove_tool(tool.name)
        language = self._language_of(request) if on else self._language
        for tool in on:
            known = offered.get_tool(tool.name)
            # What a persona does not offer, or a person switched off, stays away.
            if tool.name in new or (known is not None and known.active):
                offered.add_tool(self._made[tool.name, language])

    def _language_of(self, request: Any) -> str:
        history = request.contexts if isinstance(request.contexts, list) else []
        current = {"role": "user", "content": request.prompt}
        return language_of([*history, current], self._language)

    def close(self) -> None:
        """Takes all tools back; none is registered any more."""
        self._closed = True
        for name in self._registered:
            self._host.remove_tool(name)
        self._registered.clear()

    def _handler(self, tool: Tool, texts: Texts) -> Callable[..., Awaitable[str]]:
        async def handle(event: Any, **arguments: Any) -> str:
            session_id = event.unified_msg_origin
            try:
                session = await self._storage.get_session(session_id)
                if self._closed or session is None or not getattr(session, tool.option):
                    return texts.get("tool_off")
                return await tool.run(session, event, arguments)
            except ContextManagerError as error:
                return texts.get("tool_failed", error=error)
            except Exception as error:
                # The border to the model: it gets an answer, and the chat goes on.
                logger.exception("[context_manager] %s: %s failed", session_id, tool.name)
                return texts.get("tool_failed", error=type(error).__name__)

        return handle
