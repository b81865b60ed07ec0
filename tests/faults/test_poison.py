"""A schedule contains unreadable entries and good entries."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import redis

from tests.faults.beats import Beats
from tests.faults.conftest import Note
from tests.faults.entries import PREFIX, SCHEDULE, definition_json, meta_json, names
from tests.faults.entries import Schedule as Entries
from tests.faults.ledger import Ledger
from tests.faults.profile import Profile
from tests.faults.trial import Grid, settle
from tests.servers import RedisServer
from tests.waiting import wait_until

pytestmark = pytest.mark.long

QUARANTINE = ".redbeat::quarantine"
GOOD = names(20)
#: How many entries there are of each kind of bad entry.
EACH = 2
HOUR = 3600.0
#: Seconds within which a good entry is dispatched, despite the bad entries.
SOON = 2.0
#: Seconds from storing the good entries to their first run; a beat checks Redis more often.
AHEAD = 2.0
#: Seconds within which a repaired entry runs: two checks of the quarantine, and a margin.
REPAIRED_WITHIN = 12.0
DEPTH = 50_000

Raw = Any
#: A function that stores a bad entry under a name.
Spoil = Callable[[Raw, str], None]


@pytest.fixture
def raw(schedule_redis: RedisServer) -> Iterator[Raw]:
    """Return a client of the schedule's Redis that reads and writes bytes."""
    with redis.Redis.from_url(schedule_redis.url) as client:
        yield client


def fields(**texts: str | bytes) -> Spoil:
    """Return a function that stores a hash with a good definition and with these fields."""

    def spoil(client: Raw, name: str) -> None:
        client.hset(PREFIX + name, mapping={"definition": definition_json(name, HOUR), **texts})

    return spoil


def changed(**values: Any) -> Spoil:
    """Return a function that stores a definition with changed values; None removes a field."""

    def spoil(client: Raw, name: str) -> None:
        definition = {**json.loads(definition_json(name, HOUR)), **values}
        kept = {key: value for key, value in definition.items() if value is not None}
        client.hset(PREFIX + name, "definition", json.dumps(kept))

    return spoil


def scheduled(kind: str, **values: Any) -> Spoil:
    """Return a function that stores a definition with this schedule."""
    return changed(schedule={"__type__": kind, **values})


def nested(client: Raw, name: str) -> None:
    """Store a very deeply nested definition."""
    deep = "[" * DEPTH + "]" * DEPTH
    text = definition_json(name, HOUR).replace('"args": []', f'"args": {deep}')
    client.hset(PREFIX + name, "definition", text)


def command(*words: str) -> Spoil:
    """Return a function that stores another type than a hash, with the given Redis command."""
    return lambda client, name: client.execute_command(words[0], PREFIX + name, *words[1:])


def non_text(client: Raw, name: str) -> None:
    """Store a definition that contains bytes that are not UTF-8."""
    text = definition_json(name, HOUR).encode().replace(b'"faults.', b'"faults\xff\xfe.')
    client.hset(PREFIX + name, "definition", text[:-9] + b"\xc3")


BAD: dict[str, Spoil] = {
    "no-json": fields(definition='{"name": '),
    "empty": fields(definition=""),
    "no-object": fields(definition="[1, 2]"),
    "non-text": non_text,
    "no-type": scheduled("", phase="full"),
    "no-schedule": changed(schedule=None),
    "no-task": changed(task=None),
    "bad-args": changed(args="abc"),
    "bad-kwargs": changed(kwargs=[1]),
    "other-name": changed(name="somebody-else"),
    "bad-delivery": changed(delivery="perhaps"),
    "bad-cron": scheduled("crontab", minute="99"),
    "no-such-day": scheduled("crontab", day_of_month="30", month_of_year="2"),
    "bad-interval": scheduled("interval", every="1"),
    "huge-interval": scheduled("interval", every=1e308),
    "bad-zone": scheduled("rrule", freq="DAILY", dtstart=1, dtstart_zone="Mars/Olympus"),
    "bad-rule": scheduled("rrule", freq="SOMETIMES"),
    "large": changed(args=["x" * 1_100_000]),
    "nested": nested,
    "bad-meta": fields(meta="{"),
    "non-text-meta": fields(meta=b"\xff\xfe"),
    "bad-last-run": fields(meta='{"last_run_at": "yesterday"}'),
    "bad-count": fields(meta='{"last_run_at": null, "total_run_count": "many"}'),
    "bad-policy": fields(policy="]"),
    "string": command("SET", "text"),
    "list": command("RPUSH", "text"),
    "zset": command("ZADD", "1", "text"),
}


def plant(client: Raw, bad: dict[str, Spoil]) -> None:
    """Store bad entries that are due now."""
    for name, spoil in bad.items():
        spoil(client, name)
    client.zadd(SCHEDULE, {PREFIX + name: 0 for name in bad})


def repair(client: Raw, name: str) -> None:
    """Store a good definition with a plain HSET, and remove the other bad fields."""
    if client.type(PREFIX + name) != b"hash":
        client.delete(PREFIX + name)
    if name.startswith(("bad-meta", "non-text-meta", "bad-last", "bad-count", "bad-policy")):
        client.hdel(PREFIX + name, "meta", "policy")
    client.hset(PREFIX + name, "definition", definition_json(name, HOUR))


def each(kinds: dict[str, Spoil]) -> dict[str, Spoil]:
    """Return several names for each kind of bad entry."""
    return {f"{kind}-{number}": kinds[kind] for kind in kinds for number in range(EACH)}


def reports(output: str, name: str, what: str) -> int:
    """Return how often a log reports the problem ``what`` for an entry."""
    return output.count(f"Entry {PREFIX}{name} {what}")


def quarantined(client: Raw) -> set[str]:
    """Return the names of the entries in quarantine."""
    return {key.decode().removeprefix(PREFIX) for key in client.hkeys(QUARANTINE)}


def check_good(ledger: Ledger, one: Grid, until: float, note: Note) -> None:
    """Assert that each occurrence of the good entries has one message, on time."""
    strangers = [message for message in ledger.messages if message.entry not in one.entries]
    report = settle(ledger, [one], until)
    note(f"{report}; of others: {len(strangers)}")
    assert not report.lost
    assert not report.coalesced
    assert not report.early
    assert report.other_id == 0
    assert report.same_id == 0
    assert not report.late(SOON)


def test_bad_entries_are_set_aside_and_come_back_when_they_are_repaired(
    beats: Beats, schedule: Entries, ledger: Ledger, raw: Raw, profile: Profile, note: Note
) -> None:
    """Setup: one beat, 20 good entries every second.

    Fault: 56 unreadable entries of 28 kinds become due at the same moment. Later each of them gets
    a good definition with a plain HSET.

    Invariant: the good entries run on time. Each bad entry is quarantined and not sent, and the log
    reports it once, even if it stays bad for a long time. A repaired entry runs once, within 12 s,
    and leaves the quarantine.
    """
    bad = each(BAD)
    beats.start()
    beats.wait_started(0)
    one = Grid.begin(schedule, GOOD, 1.0, AHEAD)
    plant(raw, bad)
    wait_until(lambda: quarantined(raw) == set(bad), 30.0, "all in quarantine")
    # This is enough for two checks of the quarantine, and for many checks in the full profile.
    repaired_at = schedule.now() + profile.pick(11.0, 60.0)
    wait_until(lambda: schedule.now() >= repaired_at, 90.0)
    assert quarantined(raw) == set(bad)
    assert not {message.entry for message in ledger.messages} & set(bad)
    for name in bad:
        repair(raw, name)

    def sent() -> Counter[str]:
        return Counter(message.entry for message in ledger.messages if message.entry in bad)

    wait_until(lambda: set(sent()) == set(bad), REPAIRED_WITHIN, "all repaired")
    note(f"repaired entries ran within {schedule.now() - repaired_at:.1f} s")
    check_good(ledger, one, schedule.now(), note)
    wait_until(lambda: not schedule.held(bad), 30.0, "all recorded")
    assert set(sent().values()) == {1}
    assert not quarantined(raw)
    assert set(schedule.run_counts(bad).values()) == {1}
    assert beats[0].is_alive
    output = beats[0].output()
    assert {name: reports(output, name, "is quarantined: ") for name in bad} == dict.fromkeys(
        bad, 1
    )


def test_entries_that_become_worse_or_are_not_there(
    beats: Beats, schedule: Entries, ledger: Ledger, raw: Raw, note: Note
) -> None:
    """Setup: one beat, 20 good entries every second, and a few unreadable entries.

    Fault: there are sorted set members without a hash, one of them not UTF-8, and a hash with a key
    that is not UTF-8. Two of the unreadable entries get another bad definition, and two are deleted
    without the API.

    Invariant: the good entries run on time. Members without a hash are removed, with one log line
    each. An entry with another bad definition stays in quarantine and is reported once more.
    """
    worse, missing = ["worse-0", "worse-1"], ["missing-0", "missing-1", "\\xff"]
    beats.start()
    beats.wait_started(0)
    one = Grid.begin(schedule, GOOD, 1.0, AHEAD)
    plant(raw, dict.fromkeys(worse, fields(definition="{")))
    plant(raw, {"gone-0": BAD["bad-cron"], "gone-1": BAD["large"]})
    raw.hset(PREFIX.encode() + b"\xfe", "definition", definition_json("x", HOUR))
    raw.zadd(SCHEDULE, dict.fromkeys([b"redbeat:\xfe", b"redbeat:\xff"], 0))
    raw.zadd(SCHEDULE, dict.fromkeys([PREFIX + name for name in missing[:2]], 0))
    quarantined_lines = partial(reports, what="is quarantined: ")
    wait_until(lambda: quarantined_lines(beats[0].output(), "gone-1"), 30.0, "the first report")
    wait_until(lambda: raw.hlen(QUARANTINE) == 5, 30.0, "all in quarantine")
    for name in worse:
        raw.hset(PREFIX + name, "definition", "}")
    raw.delete(PREFIX + "gone-0", PREFIX + "gone-1")
    gone = [*missing, "gone-0", "gone-1"]
    removed = "is removed from the schedule"
    wait_until(
        lambda: all(reports(beats[0].output(), name, removed) for name in gone), 60.0, "removals"
    )
    wait_until(
        lambda: quarantined_lines(beats[0].output(), "worse-1") > 1, 60.0, "the second report"
    )
    check_good(ledger, one, schedule.now(), note)
    log = beats[0].output()
    assert {name: reports(log, name, removed) for name in gone} == dict.fromkeys(gone, 1)
    assert {name: quarantined_lines(log, name) for name in worse} == dict.fromkeys(worse, 2)
    assert quarantined_lines(log, "\\xfe") == 1
    assert set(raw.hkeys(QUARANTINE)) == {
        b"redbeat:\xfe",
        *(f"{PREFIX}{name}".encode() for name in worse),
    }
    left = {key for key in raw.zrange(SCHEDULE, 0, -1) if b"celery" not in key}
    kept = {f"{PREFIX}{name}".encode() for name in (*worse, *GOOD)}
    assert left == {b"redbeat:\xfe", *kept}
    assert beats[0].is_alive


#: Readable schedules that never run or never run again, by name.
NEVER = {
    "rule": {"__type__": "rrule", "freq": "MINUTELY", "bymonth": 2, "bymonthday": 30, "dtstart": 1},
    "rule-of-seconds": {
        "__type__": "rrule",
        "freq": "SECONDLY",
        "dtstart": -62135596800,
        "bymonth": 2,
        "bymonthday": 30,
    },
    "empty-intersection": {
        "__type__": "rrule",
        "freq": "SECONDLY",
        "dtstart": 0,
        "byyearday": 1,
        "bymonth": 12,
    },
    "over": {"__type__": "rrule", "freq": "SECONDLY", "dtstart": 0, "until": 10},
}


def test_schedules_that_never_match(
    beats: Beats, schedule: Entries, ledger: Ledger, raw: Raw, profile: Profile, note: Note
) -> None:
    """Setup: one beat, 20 good entries every second.

    Fault: some entries have a valid schedule without any instant after their last run. Examples are
    rules for 30 February and a rule that has ended.

    Invariant: the good entries run on time. The other entries are parked and not sent: their last
    run was long ago and no instant follows it.
    """
    ran = meta_json(1e9, 1)
    never = {f"{kind}-{number}": when for kind, when in NEVER.items() for number in range(EACH)}
    beats.start()
    beats.wait_started(0)
    one = Grid.begin(schedule, GOOD, 1.0, AHEAD)
    for name, when in never.items():
        changed(schedule=when)(raw, name)
        raw.hset(PREFIX + name, "meta", ran)
    raw.zadd(SCHEDULE, {PREFIX + name: 0 for name in never})
    until = schedule.now() + profile.pick(5.0, 60.0)
    wait_until(lambda: schedule.now() >= until, 90.0)
    scores = {name: raw.zscore(SCHEDULE, PREFIX + name) for name in never}
    check_good(ledger, one, until, note)
    assert not {message.entry for message in ledger.messages} & set(never)
    assert set(scores.values()) == {-1.0}
    assert set(schedule.run_counts(never).values()) == {1}
    assert beats[0].is_alive
