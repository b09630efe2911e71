"""Recall, speed and size of the search; run by ``make bench``.

``--data PATH`` or the environment's ``BENCH_DATA`` measures recall on a retrieval set:
``{conversations: [{id, language, messages: [{id, speaker, time, text}], questions:
[{question, evidence: [message id], category}]}]}``. recall@k is the share of a question's
evidence among the first k hits, averaged over questions. ``adversarial`` ones are left out.
"""

import argparse
import asyncio
import json
import os
import random
import re
import sqlite3
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path

from .importable import make_plugin_importable

make_plugin_importable()

from astrbot_plugin_context_manager.database import Database  # noqa: E402
from astrbot_plugin_context_manager.search import Scope, search  # noqa: E402
from astrbot_plugin_context_manager.search_terms import (  # noqa: E402
    index_terms,
    match_expression,
    query_terms,
)

from .archive_seed import Said, archive  # noqa: E402
from .sentences import Sentences  # noqa: E402

CUTS = (5, 10)
LEAST = {"en": (0.64, 0.72), "zh": (0.85, 0.91)}
SIZES = (10_000, 100_000, 1_000_000)
SESSION_MESSAGES = 5000
QUERIES = 60
MOST_IN_SESSION, MOST_OVER_ALL = 3, 15


# Recall


def moment(text: str) -> int:
    """The time of a message as the sets write it, in unix seconds."""
    text = re.sub(r"\s+", " ", text.strip())
    for form in ("%Y-%m-%d", "%I:%M %p on %d %B, %Y"):
        try:
            return int(datetime.strptime(text, form).timestamp())
        except ValueError:
            continue
    return 0


async def ask_all(conversation: dict, folder: Path) -> dict[str, list[list[int]]]:
    """The first hits of every question, as positions, by each of the two ways."""
    database = await Database.open(folder / f"{conversation['id']}.db")
    said = [
        Said("s", seq, m["text"], sender=m["speaker"], time=moment(m["time"]))
        for seq, m in enumerate(conversation["messages"])
    ]
    await archive(database, said)
    alone = fts5_alone(said)
    hits: dict[str, list[list[int]]] = {"FTS5 alone": [], "two-stage": []}
    for question in conversation["questions"]:
        text = question["question"]
        hits["FTS5 alone"].append(alone(text))
        found = await search(database, text, Scope("s"), limit=max(CUTS))
        hits["two-stage"].append([hit.seq for hit in found.items])
    await database.close()
    return hits


def fts5_alone(messages: list[Said]) -> Callable[[str], list[int]]:
    """The same terms in a plain FTS5 table, ranked by its own bm25."""
    db = sqlite3.connect(":memory:")
    db.execute("CREATE VIRTUAL TABLE f USING fts5(terms, tokenize='ascii')")
    for seq, message in enumerate(messages):
        terms = " ".join(index_terms(f"{message.sender}\n{message.text}"))
        db.execute("INSERT INTO f (rowid, terms) VALUES (?, ?)", (seq, terms))

    def ask(text: str) -> list[int]:
        if not (terms := query_terms(text)):
            return []
        rows = db.execute(
            "SELECT rowid FROM f WHERE f MATCH ? ORDER BY rank LIMIT ?",
            (match_expression(terms), max(CUTS)),
        )
        return [row[0] for row in rows]

    return ask


async def recall(conversations: list[dict]) -> bool:
    """Prints the recall of both ways; whether the two-stage one reaches what it must."""
    found: dict[tuple[str, str, int], list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        for conversation in conversations:
            hits = await ask_all(conversation, Path(folder))
            names = [message["id"] for message in conversation["messages"]]
            for way, answers in hits.items():
                for question, places in zip(conversation["questions"], answers, strict=True):
                    evidence = set(question["evidence"])
                    if question["category"] == "adversarial" or not evidence:
                        continue
                    for cut in CUTS:
                        first = {names[place] for place in places[:cut]}
                        key = (conversation["language"], way, cut)
                        found[key].append(len(first & evidence) / len(evidence))
    good = True
    for language, least in LEAST.items():
        for way in ("FTS5 alone", "two-stage"):
            shares = [statistics.mean(found[language, way, cut]) for cut in CUTS]
            print(f"recall@5/@10  {language}  {way:10}  {shares[0]:.3f} / {shares[1]:.3f}")
        enough = all(share >= bound for share, bound in zip(shares, least, strict=True))
        good &= enough
        print(f"  wanted {least[0]} / {least[1]}: {'ok' if enough else 'NOT REACHED'}")
    return good


# Speed and size


async def timed(call: Callable[[], Awaitable[object]]) -> float:
    """Milliseconds of a call."""
    start = time.perf_counter()
    await call()
    return (time.perf_counter() - start) * 1000


def spread(times: list[float]) -> tuple[float, float]:
    """Median and 95th percentile."""
    return statistics.median(times), sorted(times)[int(len(times) * 0.95)]


async def measure(size: int, folder: Path) -> dict[str, tuple[float, float]]:
    """Fills an archive of sessions of equal size and asks it."""
    path = folder / f"{size}.db"
    database = await Database.open(path)
    sentences, sessions = Sentences(size), size // SESSION_MESSAGES
    appended: list[float] = []
    for start in range(0, size, 1000):
        said = [
            Said(f"qq:GroupMessage:{place % sessions}", place // sessions, next(sentences))
            for place in range(start, start + 1000)
        ]
        appended.append(await timed(lambda said=said: archive(database, said)))
    questions = pieces(size)
    inside, over_all = [], []
    for text in questions:
        scope = Scope("qq:GroupMessage:1")
        inside.append(await timed(lambda t=text, s=scope: search(database, t, s)))
        over_all.append(await timed(lambda t=text: search(database, t, Scope(None))))
    await database.close()
    result = {"inside": spread(inside), "over all": spread(over_all)}
    print(
        f"{size:>9,} messages: append {statistics.mean(appended):.0f} ms a thousand, in a session"
        f" p50 {result['inside'][0]:.0f} p95 {result['inside'][1]:.0f} ms, over all"
        f" p50 {result['over all'][0]:.0f} p95 {result['over all'][1]:.0f} ms,"
        f" {path.stat().st_size / 1e6:.0f} MB of which index {index_size(path) / 1e6:.0f}",
        flush=True,
    )
    return result


def pieces(size: int) -> list[str]:
    """Questions: pieces of 1 to 20 characters of sentences that the archive holds."""
    sentences, draw = Sentences(size), random.Random(7)
    questions = []
    for _ in range(QUERIES):
        text = next(sentences)
        length = min(len(text), draw.choice([1, 2, 3, 4, 8, 20]))
        start = draw.randrange(len(text) - length + 1)
        questions.append(text[start : start + length])
    return questions


def index_size(path: Path) -> int:
    """Bytes of the full-text index."""
    with sqlite3.connect(path) as db:
        return db.execute("SELECT sum(length(block)) FROM message_index_data").fetchone()[0]


async def scale(sizes: list[int]) -> bool:
    """Prints speed and size; whether a large archive is not too much slower."""
    with tempfile.TemporaryDirectory() as folder:
        results = [await measure(size, Path(folder)) for size in sizes]
    good = True
    for scope, most in (("inside", MOST_IN_SESSION), ("over all", MOST_OVER_ALL)):
        for place, name in enumerate(("p50", "p95")):
            ratio = results[-1][scope][place] / results[0][scope][place]
            good &= ratio <= most
            verdict = "ok" if ratio <= most else "NOT REACHED"
            print(f"{scope} {name}: {ratio:.1f} times the smallest, at most {most}: {verdict}")
    return good


def main() -> int:
    """Runs what the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    given = os.environ.get("BENCH_DATA") or None
    parser.add_argument("--data", type=Path, default=given, help="a retrieval set, for recall")
    parser.add_argument("--sizes", type=int, nargs="*", default=list(SIZES))
    arguments = parser.parse_args()
    good = True
    if arguments.data:
        good &= asyncio.run(recall(json.loads(arguments.data.read_text())["conversations"]))
    else:
        print("recall: skipped; give a retrieval set with `make bench DATA=path`")
    if arguments.sizes:
        good &= asyncio.run(scale(arguments.sizes))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
