"""Tests of paging through small and large schedules."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from html import unescape
from typing import Any

import pytest
import redis
from celery import Celery
from celery.schedules import crontab

from redbeat import RedBeatSchedulerEntry
from redbeat.config import get_redis
from redbeat.errors import InvalidEntryError
from redbeat.management.find import MAX_READ, SORTED, SORTS, Found, browse, like
from redbeat.management.schedule import Schedule
from redbeat.storage.reading import SCAN_COUNT
from redbeat.web.pages import search_in
from tests.conftest import Make
from tests.samples import long
from tests.schedule.conftest import RoundTrips
from tests.stored import put_failing, put_state
from tests.web.conftest import Browser

MANY = 20_000


@pytest.fixture
def fill(app: Celery, redis_client: redis.Redis) -> Callable[[int], None]:
    """Return a function that stores ``count`` copies of an entry, due one second apart."""

    def fill(count: int) -> None:
        entry = RedBeatSchedulerEntry("e0000000", "proj.note", crontab(minute="1"), app=app).save()
        definition = entry.texts()[0]
        for first in range(0, count, 5000):
            with redis_client.pipeline(transaction=False) as pipe:
                scores = {}
                for number in range(first, min(first + 5000, count)):
                    name = f"e{number:07}"
                    text = definition.replace("e0000000", name)
                    pipe.hset(f"redbeat:{name}", "definition", text)
                    scores[f"redbeat:{name}"] = 4_000_000_000 + number
                pipe.zadd("redbeat::schedule", scores)
                pipe.execute()

    return fill


def names(found: Any) -> list[str]:
    """Return the names of the entries on a page."""
    return [record.name for record in found.records]


Query = dict[str, str]


def search(schedule: Schedule, query: Query, after: str | None = None, limit: int = 50) -> Found:
    return browse(schedule, *search_in(query), after, limit)


def walked(schedule: Schedule, query: Query, limit: int) -> Iterator[str]:
    """Yield the names of the entries on all pages."""
    after = None
    for _ in range(1000):
        found = search(schedule, query, after, limit)
        assert len(found.records) <= limit
        yield from names(found)
        after = found.after
        if after is None:
            return
    raise AssertionError("the pages have no end")


@pytest.mark.parametrize("text", ["1795615868.016776", "1795615868.0167761"])
def test_a_cursor_may_have_been_written_by_another_server(
    schedule: Schedule, make: Make, redis_client: redis.Redis, text: str
) -> None:
    # Both texts are the same number: Redis 7.0 and earlier write the longer one.
    for name in ("a", "b", "c"):
        make(name, 3600)
        redis_client.zadd("redbeat::schedule", {f"redbeat:{name}": float(text)})
    assert names(search(schedule, {}, f"{text} redbeat:b")) == ["c"]


@pytest.mark.parametrize("sort", SORTS)
@pytest.mark.parametrize("limit", [long(1), 3, long(4), long(100)])
def test_pages_hold_each_entry_once(schedule: Schedule, make: Make, sort: str, limit: int) -> None:
    made = [f"n{number}" for number in range(7)]
    for number, name in enumerate(made):
        make(name, 3600 + number, task=f"t{number % 2}")
    make("n8").pause()
    found = list(walked(schedule, {"sort": sort}, limit))
    assert sorted(found) == [*made, "n8"]
    if sort.endswith("name"):
        assert found == sorted(found, reverse=sort == "-name")


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"q": "BILL"}, ["billing-a", "billing-b"]),
        ({"q": "*-b"}, ["billing-b"]),
        ({"q": "*-B", "sort": "-name"}, ["billing-b"]),
        ({"task": "proj.O"}, ["other"]),
        ({"task": "?roj.other"}, ["other"]),
        ({"state": "paused"}, ["asleep"]),
        ({"state": "scheduled", "q": "b"}, ["billing-a", "billing-b"]),
        ({"state": "quarantined"}, ["bad"]),
        ({"state": "not scheduled"}, ["out-a", "out-b"]),
        ({"state": "not scheduled", "q": "b", "sort": "-name"}, ["out-b"]),
        ({"state": "not scheduled", "sort": "last"}, ["out-a", "out-b"]),
        ({"last_result": "failed"}, ["billing-b"]),
        ({"last_result": "failed", "q": "other"}, []),
        ({"static": "static"}, ["billing-a"]),
        ({"static": "dynamic", "q": "bill"}, ["billing-b"]),
        ({"q": "nothing"}, []),
        ({"q": "["}, ["odd[name"]),
    ],
)
def test_filters(
    schedule: Schedule,
    make: Make,
    broken: Callable[[str, str], None],
    redis_client: redis.Redis,
    query: Query,
    expected: list[str],
) -> None:
    for number, name in enumerate(("billing-a", "billing-b", "odd[name")):
        make(name, 3600 + number)
    make("other", 9999, task="proj.other")
    make("asleep").pause()
    put_state(redis_client, "redbeat:billing-b", results=[None, 1, 1.0, ["x"], "failed"])
    put_state(redis_client, "redbeat:other", results=[1.0, 0, 1.0, [], "succeeded"])
    broken("bad", "{")
    for name in ("out-a", "out-b"):
        make(name)
        redis_client.zrem("redbeat::schedule", f"redbeat:{name}")
    redis_client.sadd("redbeat::statics", "billing-a")
    found = search(schedule, query)
    assert names(found) == expected
    assert (found.after, found.cut) == (None, False)
    assert list(walked(schedule, query, 1)) == expected


def test_an_entry_whose_last_run_failed_is_found_among_many(
    schedule: Schedule, fill: Callable[[int], None], redis_client: redis.Redis
) -> None:
    """Others are not decoded, so that more of them can be read for a page."""
    fill(MAX_READ + 100)
    last = f"e{MAX_READ + 99:07}"
    put_state(redis_client, f"redbeat:{last}", results=[None, 1, 1.0, ["x"], "failed"])
    found = search(schedule, {"last_result": "failed"})
    assert (names(found), found.cut, found.after) == ([last], False, None)
    assert [record.name for record in schedule.records(last_result="failed")] == [last]


def test_an_unreadable_entry_shows_its_problem(
    schedule: Schedule, broken: Callable[[str, str], None]
) -> None:
    broken("bad", "{")
    (record,) = search(schedule, {"q": "bad"}).records
    assert record.entry is None
    assert "definition" in (record.problem or "")


@pytest.mark.parametrize(
    ("text", "expected", "is_like"),
    [
        ("Billing-A", "bill", True),
        ("billing-a", "bill*", True),
        ("billing-a", "*b", False),
        ("a[b]", "[b]", True),
        ("straße", "STRASSE", True),
    ],
)
def test_names_are_compared_to_patterns(text: str, expected: str, is_like: bool) -> None:
    assert like(text, expected) is is_like


@pytest.mark.parametrize("query", [{}, {"q": "x"}, {"sort": "task"}])
def test_an_invalid_place_is_refused(schedule: Schedule, query: Query) -> None:
    with pytest.raises(InvalidEntryError, match="not a valid cursor"):
        search(schedule, query, "somewhere")


@pytest.mark.long
def test_a_long_search_continues_on_the_next_page(
    schedule: Schedule, fill: Callable[[int], None]
) -> None:
    fill(4100)
    found = search(schedule, {"task": "nothing"})
    assert (found.records, found.cut) == ([], True)
    found = search(schedule, {"task": "nothing"}, found.after)
    assert found.cut
    found = search(schedule, {"task": "nothing"}, found.after)
    assert (found.cut, found.after) == (False, None)


@pytest.mark.long
@pytest.mark.parametrize("sort", ["-due", "name", "task"])
def test_large_schedules_are_not_sorted(
    browser: Browser, fill: Callable[[int], None], sort: str
) -> None:
    fill(SORTED + 1)
    page = browser.get("/", code=400, sort=sort)
    assert "works for up to 5,000 entries, and more match" in page
    assert 'id="filter"' in page
    assert "<tr data-key" in browser.get("/", sort=sort, q="e0000001")


@pytest.mark.long
def test_a_large_schedule_costs_no_more_than_a_small_one(
    app: Celery,
    browser: Browser,
    fill: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trips = RoundTrips(get_redis(app), monkeypatch)
    counts = []
    for size in (1000, MANY):
        fill(size)
        browser.get("/")
        trips.take()
        page = browser.get("/")
        first = trips.take()
        assert page.count("<tr data-key") == 50
        after = page.split('rel="next"')[0].rsplit('href="', 1)[1].split('"')[0]
        browser.get("/" + after.replace("&amp;", "&"))
        second = trips.take()
        browser.get("/entry", name="e0000500")
        counts.append((first, second, trips.take()))
    assert all(trips <= most for row in counts for trips, most in zip(row, (4, 4, 2), strict=True))
    page = browser.get("/", q=f"e{MANY - 1:07}")
    assert trips.take() <= MANY / SCAN_COUNT + 5
    assert page.count("<tr data-key") == 1
    browser.get("/", code=400, sort="-name")
    assert trips.take() <= SORTED / SCAN_COUNT + 5
    for state in ("scheduled", "paused", "failing", "quarantined"):
        browser.get("/", state=state)
        assert trips.take() <= 4


@pytest.mark.parametrize("query", [{}, {"sort": "name"}, {"sort": "-due"}, {"sort": "task"}])
def test_the_position_is_shown_and_a_jump_leads_to_it(
    browser: Browser, make: Make, query: dict[str, Any]
) -> None:
    for number in range(45):
        make(f"entry-{number:02}", 3600 + number)
    names = []
    page, position = browser.get("/", per="20", **query), 1
    while True:
        found = re.findall(r'<tr data-key="(entry-\d\d)"', page)
        names += found
        assert f">{position}-{position + len(found) - 1} of 45<" in page
        position += len(found)
        following = re.search(r'href="(\?[^"]*)" rel="next"', page)
        if following is None:
            break
        page = browser.get("/" + unescape(following[1]))
    assert len(set(names)) == len(names) == 45
    jumped = browser.get("/", per="20", at="31", **query)
    assert re.findall(r'<tr data-key="(entry-\d\d)"', jumped) == names[30:]
    assert ">31-45 of 45<" in jumped
    assert "No entr" in browser.get("/", per="20", at="100", **query)
    assert ">1-20 of 45<" in browser.get("/", per="20", at="odd", **query)


def test_a_state_is_found_at_once_behind_thousands_of_other_entries(
    browser: Browser, schedule: Schedule, redis_client: redis.Redis
) -> None:
    schedule.save_all(
        RedBeatSchedulerEntry(f"e{number:04}", "task", 3600, app=schedule.app)
        for number in range(2100)
    )
    for name in ("late", "off", "off-too", "broken"):
        RedBeatSchedulerEntry(name, "task", 86_400, app=schedule.app).save()
    put_failing(redis_client, "redbeat:late", 3, 1.0, "OSError")
    redis_client.zadd(".redbeat::failing", {"redbeat:late": 1})
    schedule.pause_all(["off", "off-too"])
    redis_client.hset("redbeat:broken", "definition", "{")
    redis_client.zadd("redbeat::schedule", {"redbeat:broken": -1})
    redis_client.hset(".redbeat::quarantine", "redbeat:broken", "why")
    expected = {"failing": ["late"], "paused": ["off", "off-too"], "quarantined": ["broken"]}
    for state, names in {**expected, "finished": []}.items():
        page = browser.get("/", state=state)
        assert re.findall(r'<tr data-key="([^"]*)"', page) == names
        assert "Continue the search" not in page
        assert (f"1-{len(names)} of {len(names)}" in page) is bool(names)
    seen: list[str] = []
    after: str | None = None
    while after is not None or not seen:
        found = search(schedule, {"state": "scheduled"}, after, 900)
        seen += [record.name for record in found.records]
        after = found.after
    assert sorted(seen) == [f"e{number:04}" for number in range(2100)]
    assert "1-50 of 2,100" in browser.get("/", state="scheduled")
