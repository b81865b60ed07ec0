"""A user's schedule or entry class with invalid results affects only its own entries."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from celery.schedules import BaseSchedule, crontab, schedule

from redbeat import RedBeatSchedulerEntry, register_schedule_type
from redbeat.management.status import status_of
from tests.deployments import PREFIX
from tests.samples import one_in

from .conftest import Clock, RecordingScheduler, World, interval_json

HUGE = 10**400


class NoFloat:
    """A number of seconds that cannot be converted to a float."""

    def __float__(self) -> float:
        raise RuntimeError("odd")


def fail(*_: Any, **__: Any) -> Any:
    """Raise ``RuntimeError``."""
    raise RuntimeError("odd")


def fail_with_a_value_error() -> Any:
    """Raise ``ValueError``, which a constructor usually raises for a wrong argument."""
    raise ValueError("odd")


class Odd(BaseSchedule):
    """The base class of the odd schedules. It is registered as the schedule type "odd"."""


class OddInterval(Odd, schedule):
    """An interval that is registered as the schedule type "odd"."""


class OddCrontab(Odd, crontab):
    """A crontab that is registered as the schedule type "odd"."""


def answering(answer: Any) -> Callable[[], BaseSchedule]:
    """Return a function that creates a schedule whose ``is_due`` returns ``answer``."""

    class Answering(OddInterval):
        def is_due(self, _last_run_at: datetime) -> Any:
            return answer

    return lambda: Answering(60)


def with_method(name: str, method: Any) -> Callable[[], BaseSchedule]:
    """Return a function that creates an interval with one method replaced."""
    return lambda: type("Odd", (OddInterval,), {name: method})(60)


ANSWERS: tuple[Any, ...] = (
    *((True, seconds) for seconds in (0, -5, 1e-300, math.nan, math.inf, HUGE, "5", 1j, None)),
    *((False, seconds) for seconds in (0, -5, math.nan, -math.inf, "soon", Decimal("nan"))),
    *((True, NoFloat()), (True, timedelta(5)), [True, 5], (1, 2, 3), None, 7),
)
SCHEDULES: dict[str, Callable[[], BaseSchedule]] = {
    **{f"is_due: {answer}"[:40]: answering(answer) for answer in ANSWERS},
    "is_due fails": with_method("is_due", fail),
    "now fails": with_method("now", fail),
    "now is a text": with_method("now", lambda _self: "noon"),
    "remaining_estimate fails": with_method("remaining_estimate", fail),
    "remaining_estimate is NaN": with_method("remaining_estimate", lambda *_: math.nan),
    "remaining_estimate is huge": with_method("remaining_estimate", lambda *_: timedelta.max),
    "no pickle": with_method("__reduce__", fail),
    "no repr": with_method("__repr__", fail),
    "no equality": with_method("__eq__", fail),
    "no zone": lambda: type("Odd", (OddCrontab,), {"tz": property(fail)})("*"),
    "nowfun fails": lambda: OddInterval(60, nowfun=fail),
    "nowfun fails otherwise": lambda: OddCrontab("*", nowfun=fail_with_a_value_error),
    "nowfun is NaN": lambda: OddCrontab("*", nowfun=lambda: math.nan),
    "nowfun is far": lambda: OddCrontab("*", nowfun=lambda: datetime.max),
}
_made: list[Callable[[], BaseSchedule]] = []
register_schedule_type("odd", Odd, lambda _schedule: {}, lambda _fields: _made[-1]())


@pytest.fixture(params=one_in(2, SCHEDULES))
def odd_schedule(request: pytest.FixtureRequest) -> Iterator[None]:
    """Use one of :data:`SCHEDULES` for all entries with the schedule type "odd"."""
    _made.append(SCHEDULES[request.param])
    yield
    _made.pop()


def check_the_others(world: World, scheduler: RecordingScheduler, log: str) -> None:
    """Assert that one tick runs the good entries, and neither blocks nor quarantines anything."""
    for name in ("good1", "good2"):
        world.put(name, interval_json(3600), world.ago(7200), score=2)
    wait = scheduler.tick()
    assert {"good1", "good2"} <= set(scheduler.names)
    assert scheduler.names.count("odd") < 50, "it is sent again and again"
    assert 0 <= wait <= 5
    score = world.score("odd")
    assert score is not None
    assert math.isfinite(score)
    assert world.quarantine() == {}
    assert "tick failed" not in log
    assert "Redis is not available" not in log


@pytest.mark.usefixtures("odd_schedule")
def test_an_odd_schedule(world: World, log: pytest.LogCaptureFixture) -> None:
    world.put("odd", {"__type__": "odd"}, last_run_at=world.ago(3700), score=1)
    check_the_others(world, world.scheduler(), log.text)


ODD_NUMBERS = (math.inf, -math.inf, math.nan, HUGE, 1e300, 0, -5, "5", None, timedelta(5))
METHODS: dict[str, Callable[[Any], Any]] = {
    "is_due": lambda value: lambda _entry: (True, value),
    "not is_due": lambda value: lambda _entry: (False, value),
    "score": lambda value: property(lambda _entry: value),
    "due_at": lambda value: property(lambda _entry: value),
    "next": lambda value: lambda *_, **__: value,
}


@pytest.mark.parametrize("delivery", ["at_least_once", "at_most_once"])
@pytest.mark.parametrize("value", one_in(3, ODD_NUMBERS))
@pytest.mark.parametrize("method", METHODS)
def test_an_odd_entry_class(
    world: World, log: pytest.LogCaptureFixture, method: str, value: Any, delivery: str
) -> None:
    name, odd = method.removeprefix("not "), METHODS[method](value)
    base_method: Any = getattr(RedBeatSchedulerEntry, name)

    def ours_or_odd(entry: Any, *args: Any, **kwargs: Any) -> Any:
        chosen = odd if entry.name == "odd" else base_method
        if isinstance(chosen, property):
            assert chosen.fget is not None
            return chosen.fget(entry)
        return chosen(entry, *args, **kwargs)

    made = property(ours_or_odd) if isinstance(odd, property) else ours_or_odd
    entry_class = type("OddEntry", (RedBeatSchedulerEntry,), {name: made, **dunder(name, made)})
    world.app.conf.redbeat_delivery = delivery
    world.put("odd", last_run_at=world.ago(3700), score=1)
    own: Any = type("Own", (RecordingScheduler,), {"Entry": entry_class})
    check_the_others(world, world.scheduler_of(own), log.text)
    assert world.client.exists(f"{PREFIX}odd")


def dunder(name: str, method: Any) -> dict[str, Any]:
    """Return the aliases of a method that an entry class must also override."""
    return {"__next__": method} if name == "next" else {}


def test_a_tick_that_always_fails_is_a_problem(
    world: World, clock: Clock, log: pytest.LogCaptureFixture
) -> None:
    """Setup: the lock object of a program raises an error that nothing handles."""

    class BrokenLock:
        broken = False

        def extend(self, *_: Any, **__: Any) -> bool:
            if self.broken:
                raise ValueError("out of order")
            return True

        def owned(self) -> bool:
            return True

        def release(self) -> None:
            pass

    scheduler = world.scheduler(clock=clock)
    scheduler.lock = lock = BrokenLock()
    scheduler.tick()
    assert status_of(world.app).problems == [], "a lock of the program is none of ours"
    lock.broken = True
    for _ in range(40):
        clock.advance(scheduler.tick())
    assert clock() > 1200, "the ticks do not back off"
    failures = [record for record in log.records if "The tick failed" in record.getMessage()]
    assert 2 <= len(failures) <= 4
    assert status_of(world.app).problem == "the tick fails: ValueError: out of order"
    lock.broken = False
    world.put("a")
    scheduler.tick()
    scheduler.tick()
    assert scheduler.names == ["a"]
    assert status_of(world.app).problem == ""
