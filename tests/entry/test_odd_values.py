"""Values of other libraries: subclasses of datetime, timedelta, str and int."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import Enum
from fractions import Fraction
from typing import Any

import pytest
from celery import Celery
from celery.schedules import crontab, schedule

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat import clocked, rrule
from redbeat.calendar.zones import UTC
from redbeat.errors import InvalidEntryError
from redbeat.management.schedule import Schedule
from tests.deployments import PREFIX
from tests.entry.conftest import ScoreOf
from tests.odd_times import OddDatetime, OddTimedelta, OddZone

LAST = datetime(2026, 1, 5, 10, 30, tzinfo=UTC)
ODD = OddDatetime(2026, 1, 5, 10, 30, tzinfo=UTC)
IN_PARIS = OddDatetime(2026, 1, 5, 11, 30, tzinfo=OddZone("Europe/Paris"))


@pytest.mark.parametrize("last", [ODD, IN_PARIS, OddDatetime(2026, 1, 5, 10, 30)])
@pytest.mark.parametrize("when", [60, crontab(), rrule("DAILY", dtstart=LAST)])
def test_a_last_run_of_another_class(app: Celery, score_of: ScoreOf, last: Any, when: Any) -> None:
    entry = Entry("a", "t.a", when, last_run_at=last, app=app)
    assert entry.is_due().is_due
    plain = Entry("b", "t.b", when, last_run_at=LAST, app=app)
    assert plain.upcoming(2, after=last) == entry.upcoming(2, after=LAST)
    entry.save()
    loaded = Entry.from_key(f"{PREFIX}a", app=app)
    assert loaded.last_run_at == LAST
    loaded.last_run_at = last
    assert loaded.is_due().is_due
    assert loaded.upcoming(2)
    loaded.save()
    assert score_of("a") > LAST.timestamp()
    loaded.reschedule(last)
    assert Entry.from_key(f"{PREFIX}a", app=app).last_run_at == LAST


def test_one_time_arguments_and_options_of_another_class(app: Celery) -> None:
    entry = Entry("a", "t.a", clocked(IN_PARIS), [IN_PARIS], {"at": ODD}, app=app)
    entry.options = {"expires": IN_PARIS, "eta": ODD}
    entry.start_time = ODD
    entry.save()
    loaded = Entry.from_key(f"{PREFIX}a", app=app)
    assert loaded.schedule == clocked(LAST)
    assert (loaded.args, loaded.kwargs) == ([LAST], {"at": LAST})
    assert loaded.options == {"expires": LAST, "eta": LAST}
    assert loaded.start_time == LAST


@pytest.mark.parametrize("relative", [False, True])
def test_an_interval_of_another_class(app: Celery, relative: bool) -> None:
    odd = schedule(OddTimedelta(minutes=5), relative)
    plain = schedule(timedelta(minutes=5), relative)
    made = [Entry("a", "t.a", when, last_run_at=LAST, app=app) for when in (odd, plain)]
    assert len({entry.is_due().is_due for entry in made}) == 1
    assert made[0].upcoming(3, after=LAST) == made[1].upcoming(3, after=LAST)
    made[0].save()
    assert Entry.from_key(f"{PREFIX}a", app=app).schedule == plain


def test_the_clock_of_a_schedule_may_return_another_class() -> None:
    now = datetime.now(UTC)
    clock = OddDatetime(now.year, now.month, now.day, now.hour, now.minute, tzinfo=UTC)
    for made in (rrule("DAILY", nowfun=lambda: clock), clocked(LAST, nowfun=lambda: clock)):
        assert made.is_due(LAST - timedelta(days=1)).is_due
    assert type(rrule("DAILY", nowfun=lambda: clock).dtstart) is datetime


class Job(str, Enum):
    """The names of a program's jobs; ``str(Job.CLEAN)`` is ``"Job.CLEAN"``.

    RedBeat 2 stores an entry with this name as ``redbeat:Job.CLEAN``, and the task as ``clean``.
    """

    CLEAN = "clean"
    KEEP = "keep"
    ZONE = "Europe/Paris"


def test_strings_and_numbers_of_another_class(app: Celery) -> None:
    fields: Any = {"on_finish": Job.KEEP, "timezone": Job.ZONE, "jitter": Fraction(1, 2)}
    entry = Entry(Job.CLEAN, Job.CLEAN, 60, app=app, **fields)
    entry.save()
    assert Schedule(app)[Job.CLEAN] == Schedule(app)["Job.CLEAN"]
    loaded = Entry.from_key(f"{PREFIX}Job.CLEAN", app=app)
    assert (loaded.name, loaded.task, loaded.on_finish) == ("Job.CLEAN", "clean", "keep")
    assert (loaded.timezone, loaded.jitter) == ("Europe/Paris", 0.5)


class Lazy:
    """A text that is made when it is needed, as a lazy object of Django."""

    @property  # type: ignore[misc]  # a proxy shows the class of its object
    def __class__(self) -> Any:
        return str

    def __str__(self) -> str:
        return "made"


def test_a_lazy_name(app: Celery) -> None:
    name: Any = Lazy()
    Entry(name, "t", 60, app=app).save()
    assert Entry.from_key(f"{PREFIX}made", app=app).name == "made"


def test_a_last_run_that_is_no_time_is_refused(app: Celery) -> None:
    class NotATime(OddDatetime):
        year: Any = float("nan")

    entry = Entry("a", "t.a", 60, app=app)
    entry.last_run_at = NotATime(2026, 1, 1)
    with pytest.raises(InvalidEntryError, match=r"last_run_at: .* is not a time"):
        entry.save()
