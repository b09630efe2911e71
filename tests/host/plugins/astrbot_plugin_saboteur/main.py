"""Breaks the plugin under test from inside the host, and counts what it holds.

``GET break?what=…`` breaks one thing until ``GET mend``: ``prepare``, ``build``
or ``finish`` raise, ``messages`` hides the host's message list, ``vocabulary``
hides the file of token ranks (from the next reload on).
"""

import asyncio
import importlib.util
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace

from astrbot.api.star import Context, Star
from astrbot.api.web import request
from astrbot.core.star.star_handler import star_handlers_registry

NAME = "astrbot_plugin_saboteur"
WATCHED = "astrbot_plugin_context_manager"


class Saboteur(Star):
    """Two routes to break and mend, one to count."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._undo: list[Callable[[], None]] = []
        for name in ("break", "mend", "held"):
            handler = getattr(self, f"{name}_")
            context.register_web_api(f"/{NAME}/{name}", handler, ["GET"], name)

    async def break_(self) -> dict:
        """Breaks one thing."""
        what = request.query.get("what")
        if what == "vocabulary":
            self._replace(importlib.util, "find_spec", _hiding_find_spec)
        elif what == "messages":
            self._replace(_flow_class(), "build", _build_without_list)
        else:
            self._replace(_flow_class(), what, _raising)
        return {"broken": what}

    async def mend_(self) -> dict:
        """Takes back everything that was broken."""
        while self._undo:
            self._undo.pop()()
        return {"mended": True}

    async def held_(self) -> dict:
        """Counts what the watched plugin holds in the host."""
        routes = [r for r in self.context.registered_web_apis if r[0].startswith(f"/{WATCHED}/")]
        handlers = [h for h in star_handlers_registry if WATCHED in h.handler_module_path]
        return {
            "tasks": sum(1 for task in asyncio.all_tasks() if _is_watched(task)),
            "connections": sum("sqlite" in repr(t) for t in threading.enumerate()),
            "routes": len(routes),
            "handlers": len(handlers),
        }

    def _replace(self, owner: object, name: str, make: Callable) -> None:
        original = getattr(owner, name)
        setattr(owner, name, make(original))
        self._undo.append(lambda: setattr(owner, name, original))


def _flow_class() -> type:
    (module,) = [m for name, m in sys.modules.items() if name.endswith(f"{WATCHED}.request_flow")]
    return module.RequestFlow


def _raising(original: Callable) -> Callable:
    async def broken(self, *args):
        raise RuntimeError("broken on purpose")

    return broken


def _build_without_list(original: Callable) -> Callable:
    async def build(self, event, run_context):
        await original(self, event, SimpleNamespace(messages=None))

    return build


def _hiding_find_spec(original: Callable) -> Callable:
    def find_spec(name, package=None):
        return None if name == "dashscope" else original(name, package)

    return find_spec


def _is_watched(task: asyncio.Task) -> bool:
    code = getattr(task.get_coro(), "cr_code", None)
    return code is not None and WATCHED in code.co_filename
