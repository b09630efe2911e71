"""The days that questions name, in four languages."""

from datetime import datetime

import pytest
from astrbot_plugin_context_manager.search_dates import Day, named_days

NOW = datetime(2024, 5, 6, 12)


@pytest.mark.parametrize(
    "question, day",
    [
        ("2024-05-03 说了什么", Day(2024, 5, 3)),
        ("2024/5/3", Day(2024, 5, 3)),
        ("2024.05.03", Day(2024, 5, 3)),
        ("2024年5月3日的会议", Day(2024, 5, 3)),
        ("在5月3号，我跑了多久", Day(None, 5, 3)),
        ("昨天说的那本书", Day(2024, 5, 5)),
        ("前天", Day(2024, 5, 4)),
        ("大前天", Day(2024, 5, 3)),
        ("今天", Day(2024, 5, 6)),
        ("3天前", Day(2024, 5, 3)),
        ("What did we say on May 3?", Day(None, 5, 3)),
        ("May 3rd, 2023", Day(2023, 5, 3)),
        ("on 3 May 2023", Day(2023, 5, 3)),
        ("the 3rd of september", Day(None, 9, 3)),
        ("yesterday", Day(2024, 5, 5)),
        ("the day before yesterday", Day(2024, 5, 4)),
        ("10 days ago", Day(2024, 4, 26)),
        ("きのう", Day(2024, 5, 5)),
        ("어제", Day(2024, 5, 5)),
    ],
)
def test_a_day_is_read(question, day):
    assert named_days(question, NOW) == [day]


@pytest.mark.parametrize(
    "question",
    [
        "",
        "13月40日",
        "2024-13-01",
        "2023-02-29",
        "May 40",
        "maybe 3",
        "v1.2.3",
        "12345-05-03",
        "5月",
    ],
)
def test_what_is_no_day_is_not_read_as_one(question):
    assert named_days(question, NOW) == []


def test_a_leap_day_without_a_year_is_a_day():
    assert named_days("2月29日", NOW) == [Day(None, 2, 29)]


def test_several_days_are_read_each_once():
    assert named_days("5月3日和5月4日，还有5月3号", NOW) == [Day(None, 5, 3), Day(None, 5, 4)]


def test_a_day_without_a_year_holds_in_every_year_and_no_other_day():
    day = Day(None, 5, 3)
    assert day.holds(datetime(2020, 5, 3, 23, 59))
    assert day.holds(datetime(2024, 5, 3))
    assert not day.holds(datetime(2024, 5, 4))
    assert not Day(2024, 5, 3).holds(datetime(2020, 5, 3))
