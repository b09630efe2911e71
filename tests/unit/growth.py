"""How the time of some work grows with its input, as a ratio within one run."""

import time
from collections.abc import Callable

# Eight times the input takes eight times as long if it grows in line, 64 if squared.
FACTOR, IN_LINE = 8, 24
_REPEATS = 5


def growth(work: Callable[[int], object], size: int) -> float:
    """How many times longer work takes on ``size`` than on an eighth of it."""
    return _least(work, size) / _least(work, size // FACTOR)


def _least(work: Callable[[int], object], size: int) -> float:
    """Seconds; whatever else the machine does only adds to them."""
    spent = []
    for _ in range(_REPEATS):
        started = time.perf_counter()
        work(size)
        spent.append(time.perf_counter() - started)
    return min(spent)
