"""Running hosts that the tests share, and the table of exit paths.

Hosts are started on demand, kept for the next test of the same profile, and the
one unused for longest is closed when too many run.
"""

import itertools
from collections import OrderedDict
from collections.abc import Iterator

import pytest

from dev.host_process import HostConfig, HostProcess
from dev.scripted_model import ScriptedModel

from .profiles import NONE, VERSIONS, Profile

HOSTS_AT_ONCE = 4
_numbers = itertools.count(1)


class HostPool:
    """Hosts by version and profile."""

    def __init__(self, model: ScriptedModel) -> None:
        self.model = model
        self._hosts: OrderedDict[tuple, HostProcess] = OrderedDict()

    def get(self, version: str, profile: Profile) -> HostProcess:
        """Returns the running host of a profile; starts it if need be.

        Its chats use a model of their own: what the plugin learned of how another test's
        model counts must not move their windows.
        """
        key = (version, profile.name)
        host = self._hosts.get(key)
        if host is None or not host.running:
            if host is not None:
                self._hosts.pop(key).close()
            while len(self._hosts) >= HOSTS_AT_ONCE:
                self._hosts.popitem(last=False)[1].close()
            self._hosts[key] = self.start(profile.config(version))
        self._hosts.move_to_end(key)
        self._hosts[key].web.probe("use_model", model=f"scripted-{next(_numbers)}")
        return self._hosts[key]

    def start(self, config: HostConfig) -> HostProcess:
        """Starts a host that is not shared; the caller closes it."""
        host = HostProcess(config, self.model)
        try:
            return host.start()
        except BaseException:
            host.close()
            raise

    def close(self) -> None:
        """Closes all hosts."""
        for host in self._hosts.values():
            host.close()


@pytest.fixture(scope="session")
def model() -> Iterator[ScriptedModel]:
    """The model that answers all hosts of this test process."""
    with ScriptedModel() as server:
        yield server


@pytest.fixture(scope="session")
def hosts(model: ScriptedModel) -> Iterator[HostPool]:
    """All running hosts."""
    pool = HostPool(model)
    yield pool
    pool.close()


@pytest.fixture(
    params=[pytest.param(v, marks=pytest.mark.xdist_group(f"{v}-none")) for v in VERSIONS]
)
def host(request: pytest.FixtureRequest, hosts: HostPool) -> HostProcess:
    """A host of each version with the plugin, a small budget and no limits of its own."""
    return hosts.get(request.param, NONE)


@pytest.fixture
def number() -> int:
    """A number that no other test of this process gets: for users and groups."""
    return 20_000 + next(_numbers)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder needs a host."""
    for item in items:
        if "/tests/host/" in item.path.as_posix():
            item.add_marker(pytest.mark.host)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints the exit paths as a table: one row per path, one column per host."""
    cells: dict[str, dict[str, str]] = {}
    marks = {"passed": "ok", "failed": "FAIL", "error": "ERROR", "skipped": "-", "xfailed": "x"}
    for outcome, mark in marks.items():
        for report in terminalreporter.stats.get(outcome, []):
            place = dict(getattr(report, "user_properties", [])).get("exit_path")
            if place:
                cells.setdefault(place[0], {})[place[1]] = mark
    if not cells:
        return
    columns = sorted({column for row in cells.values() for column in row})
    width = max(len(row) for row in cells)
    terminalreporter.write_sep("-", "exit paths")
    for index, column in enumerate(columns, 1):
        terminalreporter.write_line(f"{index:>{width + 2}}: {column}")
    header = "".join(f"{index:>6}" for index in range(1, len(columns) + 1))
    terminalreporter.write_line(" " * width + header)
    for row in sorted(cells):
        line = "".join(f"{cells[row].get(column, '.'):>6}" for column in columns)
        terminalreporter.write_line(f"{row:<{width}}{line}")
