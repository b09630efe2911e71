"""A real database, a scripted host and a compressor that does not pause."""

import pytest
from astrbot_plugin_context_manager.compression import Compressor
from astrbot_plugin_context_manager.settings import Settings
from astrbot_plugin_context_manager.storage import Storage
from astrbot_plugin_context_manager.tokens import TokenCounter

from .scripted_host import SESSION, ScriptedHost


@pytest.fixture
async def storage(tmp_path):
    opened = await Storage.open(tmp_path / "context_manager.db", Settings())
    await opened.see_session(SESSION, "群", "qq", 1)
    yield opened
    await opened.close()


@pytest.fixture
async def host():
    return ScriptedHost()


@pytest.fixture
async def make(storage, host):
    """Makes compressors over the same database and host; all are closed at the end."""
    made = []

    def build(**more):
        settings = more.pop("settings", Settings())
        where = more.pop("storage", storage)
        values = {"clock": lambda: 1000, "backoff": (0, 0)} | more
        made.append(Compressor(where, host, TokenCounter(), settings, **values))
        return made[-1]

    yield build
    for compressor in made:
        await compressor.close()


@pytest.fixture
async def compressor(make):
    return make()
