"""A schedule with shards: the layout, and the same results as without shards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any

import pytest
from celery import Celery
from celery.schedules import schedule as interval

from redbeat import Calendar, RedBeatSchedulerEntry, Schedule
from redbeat.config import ensure_conf
from redbeat.entries.decide import DISABLED
from redbeat.errors import ConfigurationError, InvalidEntryError
from redbeat.management.as_json import status_json
from redbeat.management.find import ORDERS, SORTS, Filter, Query, browse, in_order
from redbeat.storage.client import get_redis
from redbeat.storage.layout import Layout
from redbeat.storage.shards import ShardedStore
from redbeat.storage.store import Store, store_of
from tests.deployments import PREFIX
from tests.samples import long
from tests.topologies.groups import SLOTS, hash_slot

SHARDS = 5

#: The methods of a store for one key prefix: most are of a beat, which ticks one shard at a time.
OF_ONE_PREFIX = {
    *("claim", "begin_claim", "overlaps", "tidy_stats", "note_time_zone", "note_problem"),
    *("note_statics", "noted_statics", "offer_statics", "prune_statics", "leave"),
    *("acquire_lock", "extend_lock", "release_lock", "count_below", "layout_note"),
    *("save_layout_note", "last_tick_and_layout", "max_seconds"),
}


# -- the layout --------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["redbeat:", "app:{x}:beat:", "", "no-colon"])
@pytest.mark.parametrize("shards", [2, 5, 97])
def test_shards_are_even_over_the_slots(prefix: str, shards: int) -> None:
    prefixes = Layout(prefix, shards).prefixes
    assert [hash_slot(each) * shards // SLOTS for each in prefixes] == list(range(shards))
    assert len(set(prefixes)) == shards


def test_the_layout_never_changes() -> None:
    """Stored schedules depend on these values."""
    assert Layout("redbeat:", 1).prefixes == ("redbeat:",)
    assert Layout("{redbeat}:", 3).prefixes == LAYOUT_OF_3
    assert [Layout("x", 16).shard_of(name) for name in ("a", "b", "tenant-7:report", "é")] == [
        *(3, 9, 2, 14)
    ]


LAYOUT_OF_3 = ("{redbeat/3/0.1}:", "{redbeat/3/1.3}:", "{redbeat/3/2.4}:")


@pytest.mark.parametrize("shards", [1, 7])
def test_a_key_has_its_name(shards: int) -> None:
    layout = Layout("a:{b}:c:", shards)
    for name in ("x", "", ":lock", "{x}", "a:{b}:c:", "\udcff", "é" * 99):
        key = layout.key_of(name)
        assert layout.split(key) == (layout.shard_of(name), name)
        assert layout.split("a:{b}:c:" + name) == (layout.shard_of(name), name)


@pytest.mark.parametrize("value", [0, 257, "5", True])
def test_invalid_numbers_of_shards(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="redbeat_shards is"):
        ensure_conf(new_app("redis://", redbeat_shards=value))


def test_a_prefix_that_cannot_have_shards() -> None:
    with pytest.raises(ConfigurationError, match="cannot have shards"):
        ensure_conf(new_app("redis://", redbeat_shards=2, redbeat_key_prefix="{}:x"))


def test_every_method_of_a_store_works_with_shards() -> None:
    public = {name for name in dir(Store) if not name.startswith("_")}
    assert public - OF_ONE_PREFIX == public.intersection(dir(ShardedStore))
    assert not OF_ONE_PREFIX & set(dir(ShardedStore))


# -- the same results with and without shards --------------------------------------------------


def new_app(url: str, **settings: Any) -> Celery:
    app = Celery("shards", broker="memory://", set_as_current=False)
    app.conf.update({"redbeat_redis_url": url, "timezone": "UTC", **settings})
    return app


@pytest.fixture
def schedules(request: pytest.FixtureRequest) -> Iterator[tuple[Schedule, Schedule]]:
    """Return an empty schedule without shards, and one with shards."""
    deployment = request.getfixturevalue("deployment")
    request.getfixturevalue("redis_client")  # empties the server
    apps = [
        new_app("", **{**deployment.settings, "redbeat_key_prefix": prefix, "redbeat_shards": n})
        for prefix, n in ((PREFIX, 1), (PREFIX, SHARDS))
    ]
    for app in apps:
        vars(app)["redbeat_tracks_runs"] = True
    yield Schedule(apps[0]), Schedule(apps[1])
    for app in apps:
        get_redis(app).close()
        app.close()


NOW = datetime.now(timezone.utc)
ZONES = (None, "Europe/Berlin")


def entry_of(app: Celery, number: int) -> RedBeatSchedulerEntry:
    """Return one of many different entries; some are due at the same instant, some never."""
    entry = RedBeatSchedulerEntry(
        f"tenant-{number % 7}:job {number}" + "é" * (number % 2),
        f"proj.task{number % 3}",
        interval(3600 * (1 + number % 4)),
        args=[number],
        app=app,
        enabled=number % 5 != 0,
        last_run_at=NOW - timedelta(seconds=60 * (number // 3)),
        total_run_count=1,
        expect_within=60 if number % 11 == 0 else None,
        exclude=["holidays"] if number % 13 == 0 else [],
    )
    identity = f"same-{number}"
    entry.saved_state = entry.saved_state._replace(identity=identity, new_identity=identity)
    return entry


def fill(schedule: Schedule, number: int = 120) -> None:
    """Store a calendar and entries, one alone and the others together."""
    schedule.save_calendar(Calendar("holidays", days=["2030-12-25"]))
    entries = [entry_of(schedule.app, each) for each in range(number)]
    entries[0].save()
    assert schedule.save_all(entries) == number


def texts(items: Any) -> list[str]:
    return [repr((item.name, item.state, item.due_at, item.entry)) for item in items]


def same(schedules: tuple[Schedule, Schedule], look: Callable[[Schedule], Any]) -> Any:
    """Assert that both schedules give the same result, and return it."""
    plain, sharded = map(look, schedules)
    assert plain == sharded
    return plain


def in_full_order(schedule: Schedule, order: str) -> list[str]:
    return texts(in_order(schedule, Filter(), order))


def test_reads_give_the_same(schedules: tuple[Schedule, Schedule]) -> None:
    for schedule in schedules:
        fill(schedule)
    name = entry_of(schedules[0].app, 7).name
    assert len(same(schedules, lambda one: texts(one.records()))) == 120
    assert same(schedules, len) == 120
    assert same(schedules, lambda one: texts(one.records(pattern="tenant-3:*")))
    assert same(schedules, lambda one: texts(one.records(states=["paused"])))
    assert same(schedules, lambda one: texts(one.records(limit=7)))
    assert same(schedules, lambda one: texts(in_order(one, Filter(), "name", 50)))
    for order in ORDERS:
        assert same(schedules, partial(in_full_order, order=order))
    assert same(schedules, lambda one: one.upcoming(30, after=NOW))
    assert same(schedules, lambda one: sorted(one.calendars))
    assert same(schedules, lambda one: one[name].texts())
    assert same(schedules, lambda one: one[name].own_task_id(NOW))
    assert same(schedules, lambda one: name in one and "unknown" not in one)
    base_key = ensure_conf(schedules[0].app).key_prefix + name
    assert same(schedules, lambda one: one.entry_class.from_key(base_key, one.app).name)


@pytest.mark.parametrize(
    "sort", [sort if sort in ("due", "-due", "name", "task") else long(sort) for sort in SORTS]
)
def test_pages_of_the_dashboard_are_the_same(
    schedules: tuple[Schedule, Schedule], sort: str
) -> None:
    for schedule in schedules:
        fill(schedule, 60)

    def pages(schedule: Schedule, query: Query) -> list[list[str]]:
        found, after = [], None
        while True:
            page = browse(schedule, query, after, limit=17)
            found.append(texts(page.records))
            after = page.after
            if after is None:
                return found

    for query in (Query(sort=sort), Query(name="TENANT-2", sort=sort)):
        assert same(schedules, partial(pages, query=query))[0]
    skipped = same(schedules, lambda one: texts(browse(one, Query(sort=sort), skip=20).records))
    assert skipped


def test_a_store_gives_the_same(schedules: tuple[Schedule, Schedule]) -> None:
    for schedule in schedules:
        fill(schedule)

    def look(schedule: Schedule) -> Any:
        store = store_of(schedule.app)
        name_of = store.keys.name_of
        key = entry_of(schedule.app, 8).key
        horizon = NOW.timestamp() + 3000
        cursor, users = "0", list[str]()
        while True:
            cursor, page = store.calendar_users(cursor)
            users += map(name_of, page)
            if cursor == "0":
                break
        counts = store.counts(None, DISABLED, 60)
        return {
            "due": [(name_of(key), score) for key, score in store.due(horizon)],
            "ranked": [(name_of(key), score) for key, score in store.ranked(3, 40)],
            "scan": sorted((name_of(key), score) for key, score in store.scan_all("*job 1*")),
            "users": sorted(users),
            "counts": counts[1:7],
            "expected": sorted(map(name_of, counts.expected)),
            "lone": store.rank(entry_of(schedule.app, 119).key),
            "load": store.load(key),
            "members": store.members(),
        }

    assert same(schedules, look)["counts"][0] == 120


def test_changes_give_the_same(schedules: tuple[Schedule, Schedule]) -> None:
    def change(schedule: Schedule) -> Any:
        fill(schedule, 40)
        names = [record.name for record in schedule.records()]
        results: list[Any] = [schedule.pause_all(names[:10], "why"), schedule.resume_all(names[:3])]
        results += [schedule.delete_all(names[20:25]), schedule.pop(names[30]).texts()]
        schedule[names[11]].trigger()
        schedule[names[12]].delete()
        results.append(schedule.apply({"new": {"task": "t", "schedule": interval(5)}}).created)
        with pytest.raises(KeyError):
            del schedule[names[12]]
        with pytest.raises(InvalidEntryError):
            RedBeatSchedulerEntry(":schedule", "t", interval(5), app=schedule.app).save()
        results.append(schedule.delete_calendar("holidays") if not used(schedule) else None)
        return [*results, sorted(record.name for record in schedule.records())]

    def used(schedule: Schedule) -> bool:
        return any(entry.policy_field("exclude") for entry in schedule.find())

    same(schedules, change)


def test_the_status_adds_up_the_shards(schedules: tuple[Schedule, Schedule]) -> None:
    for schedule in schedules:
        fill(schedule)
    keys = ("healthy", "leader", "beats", "entries", "total", "statics", "due_now", "overdue")
    status = same(schedules, lambda one: [status_json(one.status(), [])[key] for key in keys[:7]])
    assert status[4] == 120


def test_a_page_reads_few_rows(schedules: tuple[Schedule, Schedule]) -> None:
    """A page must not read the limit from every shard."""
    schedule = schedules[1]
    fill(schedule, 600)
    store = store_of(schedule.app)
    read = []
    for shard in store.shards:  # type: ignore[attr-defined]
        page = shard.page

        def counted(*args: Any, page: Any = page) -> Any:
            found = page(*args)
            read.append(len(found.rows))
            return found

        shard.page = counted
    assert len(store.page(limit=500).rows) == 500
    assert sum(read) < 1.6 * 500


def test_an_operation_on_an_entry_takes_one_round_trip(
    schedules: tuple[Schedule, Schedule],
) -> None:
    store = store_of(schedules[1].app)
    store.load(entry_of(schedules[1].app, 1).key)
    assert store.round_trips == 1


@pytest.mark.parametrize("number", [0, 1])
def test_a_name_that_is_not_utf_8_is_refused(
    schedules: tuple[Schedule, Schedule], number: int
) -> None:
    schedule = schedules[number]
    assert "\ud800" not in schedule
    with pytest.raises(InvalidEntryError, match="name"):
        RedBeatSchedulerEntry("\ud800", "t", interval(5), app=schedule.app).save()
