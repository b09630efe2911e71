"""What the archive costs as it grows; run by ``make bench``.

Appends of one turn and of a backlog, and the size on disk, at each size of the archive;
then the same requests on two hosts in turn, one with an empty archive and one with the
largest: the time from a message to the call of the model must not tell them apart.
"""

import argparse
import asyncio
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from .importable import make_plugin_importable

make_plugin_importable()

from astrbot_plugin_context_manager import search_index  # noqa: E402
from astrbot_plugin_context_manager.archive import Archive, HostConversation  # noqa: E402
from astrbot_plugin_context_manager.archive_rows import Turn  # noqa: E402
from astrbot_plugin_context_manager.database import Database  # noqa: E402

from .archive_seed import Said, archive  # noqa: E402
from .host_process import HostConfig, HostProcess  # noqa: E402
from .scripted_model import ScriptedModel  # noqa: E402
from .sentences import Sentences  # noqa: E402

SIZES = (10_000, 100_000, 1_000_000)
SESSION_MESSAGES = 5000
TURNS, BACKLOG, REQUESTS = 100, 5000, 60
MOST = 1.1
DATABASE = "context_manager.db"


async def grow(database: Database, sentences: Sentences, start: int, end: int) -> None:
    """Fills the archive with sessions of some thousand messages."""
    for first in range(start, end, SESSION_MESSAGES):
        count = min(SESSION_MESSAGES, end - first)
        session = f"qq:GroupMessage:{first // SESSION_MESSAGES + 1}"
        await archive(database, [Said(session, i, next(sentences)) for i in range(count)])


def turn(sentences: Sentences) -> list[dict]:
    """A question and its answer."""
    return [{"role": role, "content": next(sentences)} for role in ("user", "assistant")]


async def measure(database: Database, sentences: Sentences, size: int) -> str:
    """One line of the table of appends."""
    book = Archive(database)
    now = time.time()
    session = f"qq:GroupMessage:bench{size}"
    backlog = [m for _ in range(BACKLOG // 2) for m in turn(sentences)]
    started = time.perf_counter()
    await book.take_over(HostConversation(f"long-{size}", session, "", now, now), backlog)
    rate = BACKLOG / (time.perf_counter() - started)
    history, times = [m for _ in range(100) for m in turn(sentences)], []
    chat = HostConversation(f"chat-{size}", session, "", now, now)
    await book.take_over(chat, history)
    for _ in range(TURNS):
        history += turn(sentences)
        started = time.perf_counter()
        await book.take_over(chat, history, Turn(len(history) - 2, int(now), "somebody"))
        times.append((time.perf_counter() - started) * 1000)
    times.sort()
    files = database.path.parent.glob(f"{database.path.name}*")
    megabytes = sum(path.stat().st_size for path in files) / 1e6
    return (
        f"{size:>10,} {statistics.median(times):>9.1f} {times[int(TURNS * 0.95)]:>9.1f}"
        f" {rate:>12,.0f} {megabytes:>9.0f}"
    )


async def fill(path: Path, sizes: list[int]) -> None:
    """Grows one archive through all sizes and prints what appends cost at each."""
    sentences = Sentences(1)
    database = await Database.open(path)
    # As a plugin that started with an empty archive: a host would index all of it anew.
    await search_index.prepare(database)
    print("  messages  turn p50  turn p95  backlog/s  disk  (ms, messages a second, MB)")
    last = 0
    for size in sizes:
        await grow(database, sentences, last, size)
        print(await measure(database, sentences, size), flush=True)
        last = size
    await database.close()


def ask(host: HostProcess, number: int) -> float:
    """Milliseconds from a message to the call of the model."""
    text = f"question {number} of {id(host)}"
    already = len(host.qq.replies("private:77"))
    started = time.time()
    host.qq.send_private(77, text)
    host.qq.wait_reply("private:77", already)
    host.web.wait_settled("qq:FriendMessage:77")
    [request] = host.model.requests(text, "chat")[:1]
    return (request.received_at - started) * 1000


def compare(path: Path) -> float:
    """How much longer a request takes with a full archive than with an empty one."""
    with ScriptedModel() as model, HostProcess(HostConfig(), model) as empty:
        full = HostProcess(HostConfig(), model)
        try:
            full.plugin_data.mkdir(parents=True)
            shutil.copy(path, full.plugin_data / DATABASE)
            full.start()
            times: dict[HostProcess, list[float]] = {empty: [], full: []}
            for number in range(REQUESTS + 5):
                for host in (empty, full) if number % 2 else (full, empty):
                    times[host].append(ask(host, number))
        finally:
            full.close()
    medians = [statistics.median(found[5:]) for found in times.values()]
    print(f"request until the model is called: {medians[0]:.1f} ms empty, {medians[1]:.1f} ms full")
    return medians[1] / medians[0]


def main() -> None:
    """Runs everything; ends with 1 if a full archive slows requests down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    sizes = sorted(parser.parse_args().sizes)
    with tempfile.TemporaryDirectory(prefix="bench-archive-") as folder:
        path = Path(folder) / DATABASE
        asyncio.run(fill(path, sizes))
        ratio = compare(path)
    print(f"ratio {ratio:.2f} (at most {MOST})")
    sys.exit(ratio > MOST)


if __name__ == "__main__":
    main()
