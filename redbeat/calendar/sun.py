"""When the events of Celery's ``solar`` schedule happen, from anywhere and in bounded work.

The sun is looked at at its highest and its lowest of each day: it crosses a horizon between two of
these moments or not at all until the next. Far from the crossing whole weeks are left out, since
the sun moves north or south by less than half a degree a day. What is found does not depend on
where the search began, and nothing of the schedule is changed.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import cache, lru_cache
from importlib import import_module
from math import ceil, degrees, pi
from typing import Any

from .zones import UTC, as_utc

__all__ = ("next_event",)

Place = tuple[str, str]
Point = tuple[float, float]

# The zero of the numbers that ephem counts days in.
EPHEM_EPOCH = datetime(1899, 12, 31, 12, tzinfo=UTC)
DAY = timedelta(days=1)
DEGREES_A_DAY = 0.41
LOOK_AHEAD = 400 * 2  # half days
SECONDS = 86400
PRECISION = 0.01 / SECONDS  # days
ON_HORIZON = 5e-6  # degrees, a millisecond as a rule; the heights are not more exact
# As Celery has them, in degrees.
HORIZONS = {"astronomical": -18.0, "nautical": -12.0, "civil": -6.0}
SUNRISE = -34 / 60


def next_event(schedule: Any, after: datetime) -> datetime | None:
    """The first event of a ``solar`` strictly after ``after``, in UTC and whole seconds.

    ``None`` if there is none within a year.
    """
    place = str(schedule.lat), str(schedule.lon)
    start = (as_utc(after) - EPHEM_EPOCH) / DAY
    half = int((start + float(schedule.lon) / 360) * 2) - 3
    end = half + LOOK_AHEAD
    try:
        while half < end:
            found, step = _look(schedule.event, place, half)
            if found is not None and (instant := _instant(found)) > after:
                return instant
            half += step
    except (OverflowError, ValueError):
        pass  # past the year 9999, or at no place on earth
    return None


def _instant(number: float) -> datetime:
    return EPHEM_EPOCH + timedelta(seconds=ceil(number * SECONDS))


def _look(event: str, place: Place, half: int) -> tuple[float | None, int]:
    """The event in a half day, if any, and how many half days to go on."""
    if event == "solar_noon":
        return (_extreme(place, half)[0], 2) if half % 2 else (None, 1)
    return _crossing(event, place, half)


@lru_cache(maxsize=4096)
def _crossing(event: str, place: Place, half: int) -> tuple[float | None, int]:
    low, high = _extreme(place, half), _extreme(place, half + 1)
    before, after = _above(event, *low[1:]), _above(event, *high[1:])
    rises = event.startswith(("dawn", "sunrise"))
    if (before < 0) != (after < 0):
        wanted = (before < 0) == rises
        return _root(event, place, (low[0], before), (high[0], after)) if wanted else None, 1
    return None, max(1, int(min(abs(before), abs(after)) / DEGREES_A_DAY) * 2)


def _root(event: str, place: Place, low: Point, high: Point) -> float:
    """When the sun is on the horizon, between two moments on either side of it.

    By straight lines; an end that stays twice counts half (the Illinois method).
    """
    moved = 0
    while high[0] - low[0] > PRECISION:
        middle = high[0] - high[1] * (high[0] - low[0]) / (high[1] - low[1])
        height = _above(event, *_height(*_sun_at(place, middle)))
        if abs(height) < ON_HORIZON:
            return middle
        if (height < 0) == (low[1] < 0):
            low, high = (middle, height), (high[0], high[1] / (2 if moved < 0 else 1))
            moved = -1
        else:
            low, high = (low[0], low[1] / (2 if moved > 0 else 1)), (middle, height)
            moved = 1
    return high[0]


def _horizon(event: str) -> float:
    return HORIZONS.get(event.partition("_")[2], SUNRISE)


def _above(event: str, height: float, radius: float) -> float:
    """Degrees of the sun above the horizon of an event: its centre, or its rim at sunrise."""
    return height + (0.0 if "_" in event else radius) - _horizon(event)


def _height(sun: Any, _observer: Any) -> tuple[float, float]:
    """Height and radius of the sun in degrees."""
    return degrees(sun.alt), degrees(sun.radius)


@cache
def _ephem() -> Any:
    return import_module("ephem")  # which a solar has imported


def _sun_at(place: Place, number: float) -> tuple[Any, Any]:
    ephem = _ephem()
    observer = ephem.Observer()
    observer.lat, observer.lon = place
    observer.elevation = observer.pressure = 0
    observer.date = number
    return ephem.Sun(observer), observer


@lru_cache(maxsize=4096)
def _extreme(place: Place, half: int) -> tuple[float, float, float]:
    """When the sun is highest, for odd numbers, or lowest, and its height and radius then.

    Half days are counted from ephem's epoch, at longitude 0.
    """
    # By mean time; the true noon is up to 17 minutes off.
    number = half / 2 - float(place[1]) / 360 - 0.5
    found = _sun_at(place, number)
    for _ in range(2):
        sun, observer = found
        days = float(observer.sidereal_time() - sun.ra) / (2 * pi) + (0.0 if half % 2 else 0.5)
        number -= (days + 0.5) % 1 - 0.5
        found = _sun_at(place, number)
    return number, *_height(*found)
