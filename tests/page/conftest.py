"""Hosts and browsers of the page's tests.

Invariants:
- A host is shared by all tests of its version; every test makes its own sessions.
- The browser lives as long as one module: Playwright's loop must be gone before
  asynchronous tests of other modules run in the same process.
- A dialog, an uncaught error or a script that a text smuggled in fails the test.
"""

import itertools
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, expect

from dev.browser import chromium, log_in
from dev.host_process import HostConfig, HostProcess
from dev.page_seed import add_session, history
from dev.scripted_model import ScriptedModel

from .driver import MemoryPage

VERSIONS = ("4.26.7", "4.29.3")
ALSO_ON_THE_OLDER_HOST = {
    "test_two_tabs_conflict_shows_both_texts_and_overwrites_nothing",
    "test_a_slow_compression_survives_leaving_and_coming_back",
    "test_an_export_is_imported_only_after_its_changes_were_shown",
    "test_language_and_theme_change_while_the_page_is_open",
}
SIZE = {"width": 1280, "height": 900}
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def model() -> Iterator[ScriptedModel]:
    """The model that answers all hosts of this test process."""
    with ScriptedModel() as server:
        yield server


@pytest.fixture(scope="session")
def running(model: ScriptedModel) -> Iterator[dict[str, HostProcess]]:
    """The hosts that run, by version."""
    hosts: dict[str, HostProcess] = {}
    yield hosts
    for host in hosts.values():
        host.close()


@pytest.fixture(
    scope="module",
    params=[pytest.param(v, marks=pytest.mark.xdist_group(f"page-{v}")) for v in VERSIONS],
)
def host(
    request: pytest.FixtureRequest, model: ScriptedModel, running: dict[str, HostProcess]
) -> HostProcess:
    """A host of each version; its own strategy gives the page a warning to show."""
    version = request.param
    if version not in running:
        host = HostProcess(HostConfig(version=version, strategy="llm_compress"), model)
        running[version] = host
        host.start(connect=False)
    return running[version]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One Chromium for a module."""
    expect.set_options(timeout=30_000)
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def login(browser: Browser, host: HostProcess) -> dict:
    """What a logged-in browser keeps."""
    context = browser.new_context()
    log_in(context, host)
    state = context.storage_state()
    context.close()
    return state


@pytest.fixture
def context(browser: Browser, login: dict) -> Iterator[BrowserContext]:
    """A logged-in browser of a Chinese user."""
    context = browser.new_context(
        storage_state=login, viewport=SIZE, locale="zh-CN", accept_downloads=True
    )
    yield context
    context.close()


@pytest.fixture
def page(context: BrowserContext, host: HostProcess) -> Iterator[MemoryPage]:
    """The plugin's page, opened."""
    page = MemoryPage(context, host)
    yield page
    assert not page.problems, page.problems


@pytest.fixture
def chat(host: HostProcess) -> dict:
    """A new group with some talk in it: ``id``, ``name`` and ``conversation``."""
    number = next(_numbers)
    session_id = add_session(
        host,
        f"qq:GroupMessage:9{number:05}",
        display_name=f"测试群 {number:05}",
        fixed_memory="规矩一",
        summary="第一版摘要",
        recent_context_token_budget=4000,
    )
    conversation = host.store.seed(session_id, history(40, 12))
    return {"id": session_id, "name": f"测试群 {number:05}", "conversation": conversation}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Browser tests take minutes: on the older host `make test` runs a part of them.

    Its WebUI differs in how it serves and frames the page, not in what the page does.
    """
    for item in items:
        if "/tests/page/test_page" in item.path.as_posix():
            item.add_marker(pytest.mark.page)
            item.add_marker(pytest.mark.host)
            version = getattr(item, "callspec", None) and item.callspec.params.get("host")
            if version == VERSIONS[0] and item.originalname not in ALSO_ON_THE_OLDER_HOST:
                item.add_marker(pytest.mark.full)
