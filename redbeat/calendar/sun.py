"""Find the next event of a ``solar`` schedule of Celery, for any place on earth.

The search computes the highest and the lowest point of the sun on each day. Between a highest and a
lowest point, the sun crosses the horizon at most once. If the sun is far from the horizon, the
search skips whole weeks, because the sun's declination changes by less than half a degree per day.
The result does not depend on the instant at which the search starts. The search does not change the
schedule object.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import lru_cache
from importlib import import_module
from math import ceil, degrees, pi
from typing import Any

from celery.exceptions import ImproperlyConfigured
from celery.schedules import solar

from redbeat.errors import TooManyStepsError

from .steps import spend
from .zones import UTC, as_utc

Place = tuple[str, str]
Point = tuple[float, float]

# The ephem package counts time in days from this instant, 1899-12-31 12:00 UTC.
EPHEM_EPOCH = datetime(1899, 12, 31, 12, tzinfo=UTC)
DAY = timedelta(days=1)
DEGREES_A_DAY = 0.41
LOOK_AHEAD = 400 * 2  # half days
HALF_DAY = 50  # the steps of a search in half a day
SECONDS = 86400
PRECISION = 0.01 / SECONDS  # days
ON_HORIZON = 5e-6  # accuracy of heights in degrees; the sun moves by 5e-6 degrees in about 1 ms
# The height of the horizon in degrees, for each kind of dawn and dusk, and for sunrise and sunset.
HORIZONS = {"astronomical": -18.0, "nautical": -12.0, "civil": -6.0}
SUNRISE = -34 / 60
NEEDS_EPHEM = "needs the package 'ephem'; install it with: pip install 'celery-redbeat[solar]'"


def make_solar(event: str, latitude: float, longitude: float, app: Any = None) -> solar:
    """Return a ``solar`` schedule of Celery.

    Raises ``ImproperlyConfigured`` without the package ephem, and ``ValueError`` for wrong values.
    """
    try:
        return solar(event, latitude, longitude, app=app)
    except (ImportError, ImproperlyConfigured) as error:  # ImportError before Celery 5.7
        raise ImproperlyConfigured(NEEDS_EPHEM) from error


def next_event(schedule: Any, after: datetime) -> datetime | None:
    """Return the first event of a ``solar`` schedule strictly after ``after``.

    The result is in UTC and in whole seconds. Returns None if there is no event within 400 days.
    """
    place = str(schedule.lat), str(schedule.lon)
    start = (as_utc(after) - EPHEM_EPOCH) / DAY
    half = int((start + float(schedule.lon) / 360) * 2) - 3
    end = half + LOOK_AHEAD
    try:
        while half < end:
            spend(HALF_DAY)
            number, step = _event_in(schedule.event, place, half)
            half += step
            if number is not None:
                instant = EPHEM_EPOCH + timedelta(seconds=ceil(number * SECONDS))
                if instant > after:
                    return instant
    except TooManyStepsError:
        raise
    except (OverflowError, ValueError):
        pass  # the search reached the year 9999, or the coordinates are invalid
    return None


@lru_cache(maxsize=4096)
def _event_in(event: str, place: Place, half: int) -> tuple[float | None, int]:
    """Return when the event occurs in a half day, or None, and how many half days to skip."""
    if event == "solar_noon":
        return (_extreme(place, half)[0], 2) if half % 2 else (None, 1)
    low, high = _extreme(place, half), _extreme(place, half + 1)
    before, after = _above(event, *low[1:]), _above(event, *high[1:])
    rises = event.startswith(("dawn", "sunrise"))
    if (before < 0) != (after < 0):
        is_event = (before < 0) == rises
        return _root(event, place, (low[0], before), (high[0], after)) if is_event else None, 1
    return None, max(1, int(min(abs(before), abs(after)) / DEGREES_A_DAY) * 2)


def _root(event: str, place: Place, low: Point, high: Point) -> float:
    """Return the time between ``low`` and ``high`` at which the sun crosses the horizon.

    The search uses the Illinois method, which interpolates linearly. If one end of the interval
    stays unchanged twice in a row, the Illinois method halves the height at this end.
    """
    moved = 0
    while high[0] - low[0] > PRECISION:
        middle = high[0] - high[1] * (high[0] - low[0]) / (high[1] - low[1])
        height = _above(event, *_sun_at(place, middle)[:2])
        if abs(height) < ON_HORIZON:
            return middle
        if (height < 0) == (low[1] < 0):
            low, high = (middle, height), (high[0], high[1] / (2 if moved < 0 else 1))
            moved = -1
        else:
            low, high = (low[0], low[1] / (2 if moved > 0 else 1)), (middle, height)
            moved = 1
    return high[0]


def _above(event: str, height: float, radius: float) -> float:
    """Return the height of the sun above the horizon that defines an event, in degrees.

    For sunrise and sunset, the result is the height of the sun's upper edge. For dawn and dusk, the
    result is the height of the sun's centre.
    """
    horizon = HORIZONS.get(event.partition("_")[2], SUNRISE)
    return height + (0.0 if "_" in event else radius) - horizon


def _sun_at(place: Place, number: float) -> tuple[float, float, float]:
    """Return the height and the radius of the sun in degrees, and its hour angle in days."""
    ephem = import_module("ephem")  # Celery's solar requires the ephem package
    observer = ephem.Observer()
    observer.lat, observer.lon = place
    observer.elevation = observer.pressure = 0
    observer.date = number
    sun = ephem.Sun(observer)
    angle = float(observer.sidereal_time() - sun.ra) / (2 * pi)
    return degrees(sun.alt), degrees(sun.radius), angle


@lru_cache(maxsize=4096)
def _extreme(place: Place, half: int) -> tuple[float, float, float]:
    """Return the time, the height and the radius of the sun at its highest or lowest point.

    ``half`` is the number of a half day. Half day 0 is around 00:00 and half day 1 around 12:00 of
    1899-12-31 in mean solar time, because this day is ephem's epoch. The sun is highest in an odd
    half day and lowest in an even half day.
    """
    # The first estimate is noon or midnight in mean solar time, with an error of up to 17 minutes.
    number = half / 2 - float(place[1]) / 360 - 0.5
    height, radius, angle = _sun_at(place, number)
    for _ in range(2):
        days = angle + (0.0 if half % 2 else 0.5)
        number -= (days + 0.5) % 1 - 0.5
        height, radius, angle = _sun_at(place, number)
    return number, height, radius
