"""How long a message waits for its reply, with the plugin and without it.

Both hosts run side by side and are asked in turn, so that their ratio holds on any
machine. The model answers at once: all that is measured is the host and the plugin.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from .bench_cache import LIMIT, words
from .host_process import HostConfig, HostProcess
from .scripted_model import ScriptedModel

# Turns of history, and the most that the plugin's time may be of the host's alone.
LIMITS = {10: 1.10, 500: 0.5, 5000: 0.15}
PLUGIN_TURNS, PLUGIN_LIMIT = (100, 5000), 3.0
AT_ONCE = 10
WARM_UP = 3
BACKGROUND_SECONDS = 0.2


@dataclass
class Chats:
    """Private chats of one host, each with a history of its own length."""

    host: HostProcess
    first: int = 800_000

    def seed(self, user: int, turns: int) -> None:
        """Gives a chat its history."""
        self.host.store.seed(self.session(user), history(turns))

    def session(self, user: int) -> str:
        """The host's id of a chat."""
        return f"qq:FriendMessage:{self.first + user}"

    def seconds(self, users: Sequence[int], text: str) -> float:
        """Sends a message to each chat at once; seconds until all are answered."""
        numbers = [self.first + user for user in users]
        before = [len(self.host.qq.replies(f"private:{n}")) for n in numbers]
        start = time.perf_counter()
        for number in numbers:
            self.host.qq.send_private(number, text)
        for number, already in zip(numbers, before, strict=True):
            self.host.qq.wait_reply(f"private:{number}", already, timeout=120)
        spent = time.perf_counter() - start
        for user in users:
            self.host.web.wait_settled(self.session(user))
        # What runs in the background after a reply is no part of the next one.
        time.sleep(BACKGROUND_SECONDS)
        return spent

    def plugin_milliseconds(self, user: int, newest: int) -> float:
        """Median of what the newest requests of a chat waited for the plugin."""
        _, answer = self.host.web.api(
            "GET", "session/requests", session_id=self.session(user), limit=newest
        )
        return statistics.median(item["milliseconds"] for item in answer["items"])


def history(turns: int) -> list[dict]:
    """Plain turns of a few phrases."""
    return [
        {"role": role, "content": f"{number}: {words(f'{role} {number}', parts)}"}
        for number in range(turns)
        for role, parts in (("user", 2), ("assistant", 4))
    ]


def config(version: str, with_plugin: bool) -> HostConfig:
    """A host that does not cut by itself."""
    return HostConfig(
        version=version,
        with_plugin=with_plugin,
        plugin_config={"recent_context_token_budget": LIMIT},
    )


def medians(sides: Sequence[Chats], users: Sequence[int], repeats: int) -> list[float]:
    """Median seconds of each side, asked in turn."""
    spent: list[list[float]] = [[] for _ in sides]
    for number in range(WARM_UP + repeats):
        order = list(enumerate(sides))
        for index, chats in order if number % 2 else reversed(order):
            seconds = chats.seconds(users, f"message {number}")
            if number >= WARM_UP:
                spent[index].append(seconds)
    return [statistics.median(each) for each in spent]


def run(version: str, repeats: int) -> bool:
    """Measures and prints everything; whether every limit was kept."""
    with ScriptedModel() as model:
        plugin_host = HostProcess(config(version, True), model)
        bare_host = HostProcess(config(version, False), model)
        with plugin_host, bare_host:
            plugin, bare = Chats(plugin_host), Chats(bare_host)
            kept = _ratios(plugin, bare, repeats)
            for line, good in (_plugin_time(plugin, repeats), _at_once(plugin, bare, repeats)):
                print(line, flush=True)
                kept &= good
    return kept


def _ratios(plugin: Chats, bare: Chats, repeats: int) -> bool:
    print("| history | host alone | with the plugin | ratio | limit |\n|---|---|---|---|---|")
    kept = True
    for user, (turns, limit) in enumerate(LIMITS.items()):
        for chats in (plugin, bare):
            chats.seed(user, turns)
        ours, alone = medians((plugin, bare), [user], repeats)
        kept &= ours / alone <= limit
        print(
            f"| {turns} turns | {1000 * alone:.0f} ms | {1000 * ours:.0f} ms"
            f" | {ours / alone:.2f} | {limit} |",
            flush=True,
        )
    print()
    return kept


def _plugin_time(plugin: Chats, repeats: int) -> tuple[str, bool]:
    times = []
    for user, turns in enumerate(PLUGIN_TURNS, len(LIMITS)):
        plugin.seed(user, turns)
        medians((plugin,), [user], repeats)
        times.append(plugin.plugin_milliseconds(user, repeats))
    ratio = times[1] / times[0]
    line = (
        f"plugin alone: {times[0]:.1f} ms at {PLUGIN_TURNS[0]} turns, {times[1]:.1f} ms at"
        f" {PLUGIN_TURNS[1]}: {ratio:.2f} times, limit {PLUGIN_LIMIT}"
    )
    return line, ratio <= PLUGIN_LIMIT


def _at_once(plugin: Chats, bare: Chats, repeats: int) -> tuple[str, bool]:
    users = range(100, 100 + AT_ONCE)
    for chats in (plugin, bare):
        for user in users:
            chats.seed(user, 100)
    one = medians((plugin, bare), [100], repeats)
    ten = medians((plugin, bare), users, repeats)
    slower = [many / AT_ONCE / single for many, single in zip(ten, one, strict=True)]
    line = (
        f"{AT_ONCE} sessions at once, time of a request against one alone: {slower[0]:.2f}"
        f" times with the plugin, {slower[1]:.2f} times on the host alone"
    )
    # Two medians of the same host differ by a few percent.
    return line, slower[0] <= 1.1 * max(1.0, slower[1])


def main() -> int:
    """Prints the table; 1 if a limit was missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--version", default="4.29.3")
    parser.add_argument("--repeats", type=int, default=15)
    given = parser.parse_args()
    print(f"message to reply, median of {given.repeats}, AstrBot {given.version}\n")
    return 0 if run(given.version, given.repeats) else 1


if __name__ == "__main__":
    sys.exit(main())
