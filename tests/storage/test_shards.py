"""A schedule with shards: the layout, and the same results as without shards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.schedules import schedule as interval

from redbeat import Calendar, RedBeatSchedulerEntry, Schedule
from redbeat.config import ensure_conf, get_redis
from redbeat.entries.decide import DISABLED
from redbeat.errors import ConfigurationError, InvalidEntryError
from redbeat.management.as_json import status_json
from redbeat.management.doctor import examine
from redbeat.management.find import ORDERS, SORTS, Filter, browse, in_order, page_of, static_among
from redbeat.metrics.counts import counts_of
from redbeat.metrics.snapshot import take_snapshot
from redbeat.storage import words
from redbeat.storage.keys import Keys, Layout
from redbeat.storage.reading import BATCH, REPORTS_SINCE
from redbeat.storage.store import ShardedStore, Store, store_of
from tests.cli.commands import run_command
from tests.deployments import PREFIX
from tests.samples import long
from tests.topologies.groups import SLOTS, hash_slot
from tests.waiting import wait_until

SHARDS = 5

#: The methods of a store for one key prefix: most are of a beat, which ticks one shard at a time.
OF_ONE_PREFIX = {
    *("acquire_lock", "begin_turn", "extend_lock", "release_lock"),
    "save_layout_note",
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


def test_every_method_of_a_store_works_with_shards() -> None:
    public = {name for name in dir(Store) if not name.startswith("_")}
    # A new method needs one in ShardedStore, or a name in OF_ONE_PREFIX if only beats call it.
    assert sorted(public - OF_ONE_PREFIX - set(dir(ShardedStore))) == []
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
    return texts(in_order(schedule.records(), order))


def test_reads_give_the_same(schedules: tuple[Schedule, Schedule]) -> None:
    for schedule in schedules:
        fill(schedule)
    name = entry_of(schedules[0].app, 7).name
    assert len(same(schedules, lambda one: texts(one.records()))) == 120
    assert same(schedules, len) == 120
    assert same(schedules, lambda one: texts(one.records(pattern="tenant-3:*")))
    assert same(schedules, lambda one: texts(one.records(states=["paused"])))
    assert same(schedules, lambda one: texts(one.records(limit=7)))
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

    def pages(schedule: Schedule, filters: Filter) -> list[list[str]]:
        found, after = [], None
        while True:
            page = browse(schedule, filters, sort, after, limit=17)
            found.append(texts(page.records))
            after = page.after
            if after is None:
                return found

    for filters in (Filter(), Filter("TENANT-2", fold=True)):
        assert same(schedules, partial(pages, filters=filters))[0]
    everything = [text for page in pages(schedules[0], Filter()) for text in page]

    def skipped(schedule: Schedule, skip: int) -> list[str]:
        return texts(browse(schedule, Filter(), sort, skip=skip, limit=7).records)

    for skip in (1, 20, 45, 50, 59, 60, 61):
        assert same(schedules, partial(skipped, skip=skip)) == everything[skip : skip + 7]


def test_a_store_gives_the_same(schedules: tuple[Schedule, Schedule]) -> None:
    for schedule in schedules:
        fill(schedule)

    def look(schedule: Schedule) -> Any:
        store = store_of(schedule.app)
        name_of = store.keys.name_of
        key = entry_of(schedule.app, 8).key
        users = [name_of(key) for page in store.calendar_users() for key in page]
        counts = counts_of(store, None, DISABLED, 60)
        return {
            "scan": sorted(
                (name_of(key), score) for part in store.scan("*job 1*") for key, score in part
            ),
            "users": sorted(users),
            "counts": counts[1:7],
            "expected": sorted(map(name_of, counts.expected)),
            "lone": store.rank(entry_of(schedule.app, 119).key),
            "past": store.read([key], history=True).rows[0].definition,
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
    status = same(schedules, lambda one: [status_json(one.status())[key] for key in keys[:7]])
    assert status[4] == 120


def keys_of(schedule: Schedule, name: str) -> Keys:
    """Return the keys of the shard of an entry."""
    store = store_of(schedule.app)
    return store.part_of(store.keys.entry(name)).keys


def damage(schedule: Schedule) -> None:
    """Make the mistakes that programs make that write by raw commands."""
    client = get_redis(schedule.app)
    for number in range(2 * SHARDS):
        missing, bad, orphan = f"missing-{number}", f"bad-{number}", f"orphan-{number}"
        keys = keys_of(schedule, missing)
        client.zadd(keys.schedule, {keys.entry(missing): 1e10})
        keys = keys_of(schedule, bad)
        client.hset(keys.entry(bad), "definition", "{")
        client.zadd(keys.schedule, {keys.entry(bad): 1e10})
        RedBeatSchedulerEntry(orphan, "t", interval(60), app=schedule.app).save()
        keys = keys_of(schedule, orphan)
        client.zrem(keys.schedule, keys.entry(orphan))


def test_the_doctor_finds_and_repairs_the_same(schedules: tuple[Schedule, Schedule]) -> None:
    for schedule in schedules:
        fill(schedule, 20)
        damage(schedule)

    def looks(schedule: Schedule) -> list[list[tuple[str, str, bool]]]:
        store: Any = store_of(schedule.app)
        return [
            sorted(
                (finding.kind, store.keys.name_of(finding.key), finding.fixed)
                for finding in examine(schedule, fix)
                if finding.key
            )
            for fix in (True, False)
        ]

    first, second = same(schedules, looks)
    kinds = Counter(kind for kind, _, fixed in first if fixed)
    assert kinds["missing"] == 2 * SHARDS
    found = Counter(kind for kind, _, _ in second)
    assert (found["missing"], found["orphan"]) == (0, 2 * SHARDS)
    same(schedules, lambda one: sorted(record.name for record in one.records()))


def test_entries_move_between_both_schedules(
    schedules: tuple[Schedule, Schedule], tmp_path: Path
) -> None:
    """An export of one is imported into the other, with static entries and calendars."""
    plain, sharded = schedules
    fill(plain, 40)
    plain.apply({"static": {"task": "t", "schedule": interval(60)}})
    client, keys = get_redis(plain.app), keys_of(plain, "static")
    client.sadd(keys.statics, "static")
    file = tmp_path / "entries.jsonl"
    for source, target in ((plain, sharded), (sharded, plain)):
        assert run_command(source.app, "export", str(file), "--history").code == 0
        result = run_command(target.app, "import", str(file))
        assert result.code == 0, result.err
        names = {record.name for record in source.records()}
        assert {record.name for record in target.records()} == names
        assert len(names) == 41
        assert static_among(store_of(target.app), names) == {"static"}
        same(schedules, lambda one: sorted(one.calendars))
        source.delete_all(names)
    assert len(plain) == 41


def test_a_calendar_forgets_entries_without_it(schedules: tuple[Schedule, Schedule]) -> None:
    def look(schedule: Schedule) -> Any:
        fill(schedule)
        names = [str(entry.name) for entry in schedule.find() if entry.exclude]
        schedule.delete_all(names[1:])
        schedule.save_calendar(Calendar("holidays", days=["2031-12-25"]))
        store = store_of(schedule.app)
        return names, [store.keys.name_of(key) for page in store.calendar_users() for key in page]

    names, users = same(schedules, look)
    assert len(names) > SHARDS
    assert users == names[:1]


def test_more_overdue_entries_in_a_shard_than_in_a_page(
    schedules: tuple[Schedule, Schedule], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redbeat.storage.reading.BATCH", 10)
    for schedule in schedules:
        schedule.save_all(
            RedBeatSchedulerEntry(
                f"e{number}", "t", interval(3600), app=schedule.app, expect_within=0.01
            )
            for number in range(25 * SHARDS)
        )

    def found(schedule: Schedule) -> set[str]:
        return {each.name for each in schedule.status().overdue}

    everything = {f"e{number}" for number in range(25 * SHARDS)}
    wait_until(lambda: found(schedules[1]) == everything, 5)


def test_the_metrics_add_up_the_shards(schedules: tuple[Schedule, Schedule]) -> None:
    for schedule in schedules:
        fill(schedule)
        client: Any = get_redis(schedule.app)
        shards = store_of(schedule.app).parts
        for number, shard in enumerate(shards):
            stats = {"dispatched": 10 // len(shards), "last_tick": f"{100 + number}.5"}
            client.hset(shard.keys.stats, mapping=stats)
    now = datetime.now(timezone.utc).timestamp()
    taken = [
        take_snapshot(store_of(one.app), ensure_conf(one.app), lambda: now) for one in schedules
    ]
    plain, sharded = taken
    assert plain.totals(0) == sharded.totals(0) == {"dispatched": 10}
    assert plain.lock_left is sharded.lock_left is None
    assert (plain.stats["last_tick"], sharded.stats["last_tick"]) == ("100.5", "104.5")
    assert plain.counts.members == sharded.counts.members == 120


def test_the_ends_of_runs_are_reported_to_their_shards(
    schedules: tuple[Schedule, Schedule],
) -> None:
    """A lost run is one that no worker reported since the first report of any worker."""

    def look(schedule: Schedule) -> Any:
        store: Any = store_of(schedule.app)
        results = [store.reports_since()]
        for number, shard in enumerate(store.parts):
            shard.client.hset(shard.keys.stats, REPORTS_SINCE, f"{2000 - number}")
        return [*results, store.reports_since() in (2000, 2001 - SHARDS)]

    assert same(schedules, look) == [None, True]


def test_the_rank_and_skipped_pages_are_the_same(schedules: tuple[Schedule, Schedule]) -> None:
    for schedule in schedules:
        schedule.save_all(
            RedBeatSchedulerEntry(
                f"e{number:04}", "t", interval(3600 + number), app=schedule.app, last_run_at=NOW
            )
            for number in range(3 * BATCH)
        )
    offset = 2 * BATCH + 7
    pages = same(schedules, lambda one: texts(browse(one, Filter(), limit=5, skip=offset).records))
    assert len(pages) == 5
    ranks = same(
        schedules,
        lambda one: [
            store_of(one.app).rank(store_of(one.app).keys.entry(name))
            for name in ("e0000", "e0499", "unknown")
        ],
    )
    assert ranks == [0, 499, None]


def test_a_page_reads_few_rows(
    schedules: tuple[Schedule, Schedule], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page must not read the limit from every shard."""
    schedule = schedules[1]
    fill(schedule, 600)
    store = store_of(schedule.app)
    read = []
    for shard in store.parts:
        page = shard.page

        def counted(*args: Any, page: Any = page) -> Any:
            found = page(*args)
            read.append(len(found.rows))
            return found

        monkeypatch.setattr(shard, "page", counted)
    assert len(page_of(store, limit=500).rows) == 500
    assert sum(read) < 1.6 * 500


def test_an_operation_on_an_entry_asks_one_shard(
    schedules: tuple[Schedule, Schedule], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, asked = store_of(schedules[1].app), list[str]()
    for part in store.parts:
        monkeypatch.setattr(part, "say", lambda key, _line, **_more: asked.append(key))
    store.say(entry_of(schedules[1].app, 1).key, '"x"', kind=words.TRIGGER)
    assert len(asked) == 1
