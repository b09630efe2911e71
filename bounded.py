"""What is held in memory of sessions and conversations, within bounds.

Invariants: no more than ``capacity`` entries and none unused for ``idle_seconds``,
except those in use; an entry that goes can be had from the database again.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any


class BoundedMap:
    """A mapping that lets its oldest entries go.

    Args:
        capacity: Entries kept.
        idle_seconds: Seconds after its last use at which an entry goes.
        in_use: Whether a key may not go now.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        capacity: int,
        idle_seconds: float,
        in_use: Callable[[Any], bool] = lambda _: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._capacity = capacity
        self._idle_seconds = idle_seconds
        self._in_use = in_use
        self._clock = clock
        # Least recently used first.
        self._entries: OrderedDict[Any, tuple[Any, float]] = OrderedDict()

    def __setitem__(self, key: Any, value: Any) -> None:
        self._entries[key] = (value, self._clock())
        self._entries.move_to_end(key)
        self._let_go()

    def __getitem__(self, key: Any) -> Any:
        self._let_go()
        value, _ = self._entries[key]
        self._entries[key] = (value, self._clock())
        self._entries.move_to_end(key)
        return value

    def __contains__(self, key: Any) -> bool:
        self._let_go()
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Any]:
        return iter(list(self._entries))

    def get(self, key: Any, default: Any = None) -> Any:
        """An entry, which counts as used now."""
        if key not in self:
            return default
        return self[key]

    def pop(self, key: Any, default: Any = None) -> Any:
        """An entry, which goes."""
        return self._entries.pop(key, (default, 0))[0]

    def _let_go(self) -> None:
        too_old = self._clock() - self._idle_seconds
        excess = len(self._entries) - self._capacity
        for key in list(self._entries):
            if excess <= 0 and self._entries[key][1] > too_old:
                return
            if not self._in_use(key):
                del self._entries[key]
                excess -= 1
