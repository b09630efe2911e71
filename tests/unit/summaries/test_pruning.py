"""Old versions go, but never those that still say something."""

import pytest
from astrbot_plugin_context_manager.settings import Settings
from astrbot_plugin_context_manager.storage import Storage

from .scripted_host import SESSION


@pytest.fixture
async def storage(tmp_path):
    opened = await Storage.open(tmp_path / "context_manager.db", Settings(summary_versions_kept=5))
    await opened.see_session(SESSION, "群", "qq", 1)
    yield opened
    await opened.close()


async def edited(storage, start, count=1):
    for number in range(start, start + count):
        await storage.update_session(SESSION, {"summary": f"edit {number}"}, None, 2)


async def committed(storage, text, base):
    version, _ = await storage.commit_summary(
        SESSION,
        text,
        base_summary=base,
        model="m",
        conversation_id="c",
        covered=4,
        prefix_hash="h",
        tokens=3,
        source="auto",
        now=200,
    )
    return version


async def texts(storage):
    return [version.text for version in await storage.all_versions(SESSION)]


async def test_the_newest_versions_up_to_the_limit_stay(storage):
    await edited(storage, 0, 20)
    assert await texts(storage) == [f"edit {n}" for n in range(15, 20)]


async def test_what_says_what_the_summary_covers_stays(storage):
    await committed(storage, "covering", "")
    await edited(storage, 0, 20)
    assert (await texts(storage))[0] == "covering" and len(await texts(storage)) == 6
    assert (await storage.latest_coverage(SESSION)).covered == 4


async def test_the_newest_conflicting_version_stays_and_older_ones_go(storage):
    await edited(storage, 0)
    await committed(storage, "conflict 1", "something else")
    await committed(storage, "conflict 2", "something else")
    await edited(storage, 1, 20)
    kept = await texts(storage)
    assert "conflict 2" in kept and "conflict 1" not in kept
    assert kept[-1] == (await storage.get_session(SESSION)).summary


async def test_the_current_summary_stays_behind_many_conflicting_versions(storage):
    await edited(storage, 0)
    for number in range(20):
        await committed(storage, f"conflict {number}", "something else")
    assert "edit 0" in await texts(storage)


async def test_other_sessions_keep_theirs(storage):
    await storage.see_session("other", "b", "qq", 1)
    await storage.update_session("other", {"summary": "theirs"}, None, 2)
    await edited(storage, 0, 20)
    assert len(await storage.all_versions("other")) == 1
