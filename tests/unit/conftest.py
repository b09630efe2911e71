"""What many unit tests begin with."""

import pytest
from astrbot_plugin_context_manager.database import Database


@pytest.fixture
async def database(tmp_path):
    opened = await Database.open(tmp_path / "context_manager.db")
    yield opened
    await opened.close()
