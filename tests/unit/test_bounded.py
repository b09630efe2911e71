"""What is held in memory stays within its bounds, and nothing in use is let go."""

import pytest
from astrbot_plugin_context_manager.bounded import BoundedMap


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def filled(clock, count, **options):
    entries = BoundedMap(options.pop("capacity", 3), 100, clock=clock, **options)
    for key in range(count):
        entries[key] = f"value {key}"
    return entries


def test_the_least_recently_used_entries_go_first(clock):
    entries = filled(clock, 3)
    assert entries[0] == "value 0"
    entries[3] = "new"
    assert list(entries) == [2, 0, 3]


def test_an_entry_unused_for_too_long_goes(clock):
    entries = filled(clock, 2)
    clock.now = 60
    assert entries.get(1) == "value 1"
    clock.now = 101
    assert entries.get(0) is None and 1 in entries


def test_an_entry_in_use_stays_whatever_its_age_and_number(clock):
    used = {0, 1}
    entries = filled(clock, 10, capacity=3, in_use=used.__contains__)
    assert list(entries) == [0, 1, 9]
    clock.now = 1000
    assert list(filter(entries.__contains__, range(10))) == [0, 1]
    used.clear()
    assert len(entries) == 2 and entries.get(0) is None and len(entries) == 0


def test_more_entries_than_the_capacity_are_held_while_all_are_in_use(clock):
    entries = filled(clock, 10, in_use=lambda _: True)
    assert len(entries) == 10


def test_none_is_a_value_like_any_other(clock):
    entries = filled(clock, 0)
    entries["x"] = None
    assert "x" in entries and entries.get("x", 5) is None
    assert entries.pop("x", 5) is None and entries.pop("x", 5) == 5


def test_a_key_that_is_missing_raises(clock):
    with pytest.raises(KeyError):
        filled(clock, 0)["x"]
