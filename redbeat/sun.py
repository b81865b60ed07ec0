"""When the events of Celery's ``solar`` schedule happen, from anywhere and in bounded work.

The sun is looked at at its highest and its lowest of each day: it crosses a horizon between two of
these moments or not at all until the next. Far from the crossing whole weeks are left out, since
the sun moves north or south by less than half a degree a day. What is found does not depend on
where the search began, and nothing of the schedule is changed.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import lru_cache
from importlib import import_module
from math import ceil, degrees, pi
from typing import Any

from .zones import UTC, as_utc

__all__ = ("next_event",)

# The zero of the numbers that ephem counts days in.
EPHEM_EPOCH = datetime(1899, 12, 31, 12, tzinfo=UTC)
DAY = timedelta(days=1)
DEGREES_A_DAY = 0.45
LOOK_AHEAD = 400 * 2  # half days
SECONDS = 86400
PRECISION = 0.01 / SECONDS  # days
ON_HORIZON = 1e-6  # degrees: the sun takes a millisecond for it, a minute or two at the pole
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


def _look(event: str, place: tuple[str, str], half: int) -> tuple[float | None, int]:
    """The event in a half day, if any, and how many half days to go on."""
    if event == "solar_noon":
        return (_extreme(place, half), 2) if half % 2 else (None, 1)
    return _crossing(event, place, half)


@lru_cache(maxsize=4096)
def _crossing(event: str, place: tuple[str, str], half: int) -> tuple[float | None, int]:
    low, high = _extreme(place, half), _extreme(place, half + 1)
    sign = 1 if event.startswith(("dawn", "sunrise")) else -1
    before, after = _height(event, place, low), _height(event, place, high)
    if sign * before < 0 <= sign * after:
        return _root(event, place, low, high), 1
    if (before < 0) != (after < 0):
        return None, 1
    # Both days of the pole, and both of its nights, leave out the same number of half days.
    nearest = min(abs(before), abs(after))
    return None, max(1, int(nearest / DEGREES_A_DAY) * 2)


def _root(event: str, place: tuple[str, str], low: float, high: float) -> float:
    """When the sun is on the horizon, between two moments on either side of it (Illinois)."""
    below, above = _height(event, place, low), _height(event, place, high)
    while high - low > PRECISION:
        middle = high - above * (high - low) / (above - below)
        height = _height(event, place, middle)
        if abs(height) < ON_HORIZON:
            return middle
        if (height < 0) == (below < 0):
            low, below, above = middle, height, above / 2
        else:
            high, above, below = middle, height, below / 2
    return high


def _horizon(event: str) -> float:
    return HORIZONS.get(event.partition("_")[2], SUNRISE)


def _height(event: str, place: tuple[str, str], number: float) -> float:
    """Degrees of the sun above the horizon of an event: its centre, or its rim at sunrise."""
    sun, _ = _sun_at(place, number)
    rim = 0.0 if "_" in event else degrees(sun.radius)
    return degrees(sun.alt) + rim - _horizon(event)


def _sun_at(place: tuple[str, str], number: float) -> tuple[Any, Any]:
    ephem = import_module("ephem")  # which a solar has imported
    observer = ephem.Observer()
    observer.lat, observer.lon = place
    observer.elevation = observer.pressure = 0
    observer.date = number
    return ephem.Sun(observer), observer


@lru_cache(maxsize=4096)
def _extreme(place: tuple[str, str], half: int) -> float:
    """When the sun is highest, for odd numbers, or lowest, in half days since ephem's epoch."""
    # Their noons are mean noons at longitude 0; the true one is up to 17 minutes off.
    number = half / 2 - float(place[1]) / 360 - 0.5
    for _ in range(2):
        sun, observer = _sun_at(place, number)
        angle = float(observer.sidereal_time() - sun.ra) + (0 if half % 2 else pi)
        number -= ((angle + pi) % (2 * pi) - pi) / (2 * pi)
    return number
