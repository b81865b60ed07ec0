"""The public API as a project uses it. Type checkers read this module; it is never run."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

from celery import Celery, current_app
from celery.schedules import BaseSchedule, crontab
from dateutil.rrule import DAILY, FR, MO
from dateutil.rrule import rrule as dateutil_rrule
from redis import Redis, RedisCluster
from typing_extensions import Unpack, assert_type

import redbeat
import redbeat.worker
from redbeat import (
    Applied,
    Backfill,
    BeatInfo,
    Calendar,
    CannotRunHereError,
    ClockChange,
    ConfigurationError,
    ConflictError,
    Copied,
    DecodeError,
    EntryArguments,
    EntryFilters,
    EntrySimulation,
    EntryStatus,
    Expected,
    Failing,
    Finding,
    Forecast,
    InvalidEntryError,
    NoQueueError,
    NotAllowedError,
    Occurrence,
    Overdue,
    Planned,
    Policy,
    PrefixCopy,
    Record,
    RedBeatError,
    RedBeatKeyExpiryError,
    RedBeatScheduler,
    RedBeatSchedulerEntry,
    RunResult,
    Schedule,
    Shard,
    Simulation,
    Status,
    TooManyStepsError,
    UnknownTypeError,
    active_beats,
    clocked,
    copy_prefix,
    copy_untagged,
    current_leader,
    from_dateutil,
    from_ical,
    hashed_crontab,
    register_schedule_type,
    rrule,
    rruleset,
    signals,
)
from redbeat.schedulers import RedBeatConfig, ensure_conf, get_redis

app = Celery("proj", broker="redis://localhost:6379/0")


def configure() -> None:
    """Set RedBeat's settings on the app, and read the configuration."""
    app.conf.redbeat_redis_url = "redis://localhost:6379/1"
    app.conf.update(redbeat_key_prefix="proj:", redbeat_lock_timeout=60.0, redbeat_lock_key=None)
    conf = ensure_conf(app)
    assert_type(conf, RedBeatConfig)
    assert_type(conf.key_prefix, str)
    assert_type(conf.schedule_key, str)
    assert_type(conf.lock_key, str | Any)
    assert_type(conf.lock_timeout, float | None)
    client: Redis | RedisCluster = get_redis(app)
    client.zcard(conf.schedule_key)
    conf.adopt(client)


def create() -> RedBeatSchedulerEntry:
    """Create entries with every kind of schedule and every argument."""
    start = datetime(2030, 1, 1, 9, tzinfo=timezone.utc)
    rule = rrule("MONTHLY", start, bymonthday=1, count=12)
    rrule("WEEKLY", start, wkst=MO, byweekday=[MO, FR(1), 2], byhour=range(9, 17), app=app)
    Calendar("weekends", ["2030-12-25"], [rule, "FREQ=WEEKLY;BYDAY=SA,SU"])
    assert_type(from_dateutil(dateutil_rrule(DAILY)), rrule | rruleset)
    kinds: list[float | timedelta | BaseSchedule] = [30, 0.5, timedelta(hours=1), crontab(hour=7)]
    kinds += [rule, rruleset([rule], exdates=[start]), clocked(start), hashed_crontab("entry")]
    for number, kind in enumerate(kinds):
        RedBeatSchedulerEntry(f"entry-{number}", "proj.task", kind, app=app).save()
    entry = RedBeatSchedulerEntry(
        name="report",
        task="proj.report",
        schedule=rule,
        args=["daily"],
        kwargs={"to": "ops"},
        enabled=True,
        options={"queue": "reports"},
        app=app,
        delivery="at_most_once",
        max_runs=3,
        overlap="skip",
        pause_after_failures=3,
        expect_within=86400,
    )
    assert_type(entry.save(), RedBeatSchedulerEntry)
    return entry


def inspect(entry: RedBeatSchedulerEntry) -> None:
    """Check the types of an entry's values."""
    assert_type(entry.key, str)
    assert_type(entry.rank, int | Any)
    assert_type(entry.due_at, datetime | Any)
    assert_type(entry.score, float)
    assert_type(RedBeatSchedulerEntry.generate_key(app, "report"), str)
    assert_type(RedBeatSchedulerEntry.load_definition(entry.key, app), dict[str, Any])
    assert_type(RedBeatSchedulerEntry.load_meta(entry.key, app=app), dict[str, Any])


def change() -> None:
    """Load, change, save and delete an entry."""
    try:
        entry = RedBeatSchedulerEntry.from_key("proj:report", app=app)
    except (KeyError, DecodeError):
        return
    assert_type(entry, RedBeatSchedulerEntry)
    entry.enabled = False
    assert_type(entry.last_run_at, datetime | Any)
    entry.last_run_at = None
    try:
        entry.save()
    except InvalidEntryError as error:
        raise SystemExit(str(error)) from error
    entry.reschedule(datetime.now(timezone.utc))
    entry.delete()
    RedBeatSchedulerEntry(name="report", app=app).delete()


class LoggedEntry(RedBeatSchedulerEntry):
    """An entry class written for RedBeat 2, whose ``save()`` has no arguments."""

    def save(self) -> LoggedEntry:
        """Set the queue before saving."""
        self.options["queue"] = "reports"
        return super().save()


class OwnedEntry(RedBeatSchedulerEntry):
    """A subclass with an additional argument; its methods return the subclass."""

    def __init__(self, *args: Any, owner: str = "", **fields: Unpack[EntryArguments]) -> None:
        super().__init__(*args, **fields)
        self.owner = owner

    def definition(self) -> dict[str, Any]:
        return {**super().definition(), "owner": self.owner}


class OwnScheduler(RedBeatScheduler):
    """A scheduler that creates `OwnedEntry` entries and catches configuration errors."""

    Entry = OwnedEntry

    def tick(self, *args: Any, **kwargs: Any) -> float:
        try:
            return super().tick(*args, **kwargs)
        except ConfigurationError:
            return 1.0


def own(scheduler: OwnScheduler) -> str:
    """Return the owner of a loaded `OwnedEntry`."""
    entry = OwnedEntry.from_key("proj:report", app=app)
    assert_type(entry, OwnedEntry)
    assert_type(entry.save(), OwnedEntry)
    assert_type(scheduler.tick(), float)
    if scheduler.lock is not None:
        assert_type(scheduler.lock.owned(), bool | Any)
        scheduler.lock.release()
    return entry.owner


def watch() -> str:
    """Return the host or token of the leader."""
    leader = current_leader(app)
    assert_type(leader, BeatInfo | None)
    assert_type(active_beats(app), list[BeatInfo])
    if leader is None:
        return "nobody"
    assert_type(leader.token, str)
    assert_type(leader.host, str | None)
    assert_type(leader.pid, int | None)
    assert_type(leader.since, datetime | None)
    return leader.host or leader.token


class payday(rrule):  # noqa: N801 - named as schedules are
    """A custom schedule class of the project."""

    def __init__(self, day: int) -> None:
        super().__init__("MONTHLY", bymonthday=day)
        self.day = day


def dump(schedule: payday) -> dict[str, int]:
    """Return the stored fields of a schedule."""
    return {"day": schedule.day}


def load(fields: dict[str, Any]) -> payday:
    """Return the schedule for the stored fields."""
    return payday(fields["day"])


def extend() -> None:
    """Register schedule types, read iCalendar rules, and enable the reports of workers."""
    register_schedule_type("payday", payday, dump, load)
    register_schedule_type("day", payday, lambda schedule: {"day": schedule.day}, load)
    assert_type(from_ical("RRULE:FREQ=DAILY"), rrule | rruleset)
    redbeat.worker.enable(app)
    assert_type(redbeat.__version__, str)
    assert issubclass(RedBeatKeyExpiryError, RedBeatError)
    assert issubclass(UnknownTypeError, CannotRunHereError)
    assert issubclass(TooManyStepsError, InvalidEntryError)
    assert issubclass(NotAllowedError, RedBeatError)
    assert issubclass(NoQueueError, RedBeatError)


def operate() -> list[str]:
    """Pause, save and trigger entries; return the outcomes of the recorded runs."""
    schedule = Schedule(app)
    filters: EntryFilters = {"enabled": True, "states": ["scheduled"]}
    for entry in schedule.find(pattern="report-*", **filters):
        entry.pause("the disk is full")
    try:
        schedule["report"].save(if_unchanged=True)
    except ConflictError as error:
        return [str(error)]
    task_id = schedule["report"].trigger()
    assert_type(task_id, str)
    return [run.outcome for run in schedule["report"].history]


def look_ahead(schedule: Schedule, start: datetime) -> None:
    """Read what the methods of a schedule and of an entry return."""
    until, entry = start + timedelta(days=1), schedule["report"]
    assert_type(schedule.forecast(until), Forecast)
    found = schedule.simulate(start, until, changes={"report": {"schedule": crontab(hour=8)}})
    assert_type(found, Simulation)
    assert_type(found.entries["report"], EntrySimulation)
    assert_type(next(found.entries["report"].runs()), tuple[Expected, str])
    assert_type(found.clock_changes(), dict[str, list[ClockChange]])
    assert_type(schedule.apply({}, dry_run=True), Applied)
    assert_type(schedule.status(), Status)
    assert_type(schedule.status().shards, list[Shard])
    assert_type(schedule.status().problems, list[Finding])
    assert_type(schedule.status().overdue, list[Overdue])
    assert_type(entry.policy, Policy)
    assert_type(entry.status, EntryStatus)
    assert_type(entry.status.failing, Failing | None)
    assert_type(entry.backfill(start, until, dry_run=True), Planned)
    assert_type(entry.backfills, list[Backfill])


def rename() -> None:
    """Copy the schedule to another prefix, with a proxy of the app and with a client."""
    assert_type(copy_untagged(current_app), Copied)
    assert_type(copy_prefix(get_redis(current_app), "redbeat:", "proj:"), PrefixCopy)


async def operate_asynchronously(schedule: Schedule) -> str:
    """Use the schedule from an event loop."""
    entry = await schedule.aget("report")
    assert_type(await schedule.asave(entry), RedBeatSchedulerEntry)
    await schedule.apause("report", "the disk is full")
    await schedule.aresume("report")
    assert_type(await schedule.alist(states=["paused"], last_result="failed"), list[Record])
    assert_type(await schedule.ahistory("report"), list[Occurrence])
    assert_type(await schedule.aupcoming(3), list[tuple[datetime, str]])
    assert_type((await schedule.astatus()).due_now, int)
    await schedule.adelete("report")
    return await schedule.atrigger("report")


@signals.run_failed.connect
def alert(name: str, result: RunResult, **_more: Any) -> str:
    """Report a failed run."""
    assert_type(result.error, str | None)
    return f"{name}: {result.error}"


@signals.broker_lost.connect
def warn(error: BaseException, **_more: Any) -> str:
    """Report an outage of the broker."""
    return repr(error)


@signals.entry_dispatched.connect(weak=False)
def note(entry: RedBeatSchedulerEntry, task_id: str, **_more: Any) -> str:
    """Report a run that was sent."""
    return f"{entry.name}: {task_id}"
