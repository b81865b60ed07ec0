"""Finds the next event of Celery's ``solar`` schedules, for any place on earth.

The search computes the highest and the lowest point of the sun on each day; between them, the sun
crosses the horizon at most once. While the sun is far from the horizon, whole weeks are skipped,
because its declination changes by less than half a degree a day. Unlike ephem's, the result doesn't
depend on when the search starts, and a day without the event is no error. The schedule object isn't
changed.
"""

from __future__ import annotations

from bisect import bisect_left
from datetime import datetime, timedelta
from functools import lru_cache
from importlib import import_module
from math import ceil, degrees
from typing import Any

from celery.exceptions import ImproperlyConfigured
from celery.schedules import solar

from redbeat.errors import TooManyStepsError

from .steps import spend
from .zones import UTC, as_utc

Place = tuple[str, str]

# ephem counts days from 1899-12-31 12:00 UTC.
EPHEM_EPOCH = datetime(1899, 12, 31, 12, tzinfo=UTC)
DAY = timedelta(days=1)
SECONDS = 86400
#: The sun is highest at most 17 minutes before noon in mean solar time.
EARLY = 20 * 60 / SECONDS  # days
DEGREES_A_DAY = 0.41
LOOK_AHEAD = 400 * 2  # half days
HALF_DAY = 50  # the steps of a search in half a day
# Height of the horizon in degrees: of each kind of dawn and dusk, and of sunrise and sunset.
HORIZONS = {"astronomical": -18.0, "nautical": -12.0, "civil": -6.0}
SUNRISE = -34 / 60
NEEDS_EPHEM = "needs the package 'ephem'; install it with: pip install 'celery-redbeat[solar]'"


def make_solar(event: str, latitude: float, longitude: float, app: Any = None) -> solar:
    """Return a ``solar`` schedule.

    Raises ``ImproperlyConfigured`` without the package ephem, ``ValueError`` for wrong values.
    """
    try:
        return solar(event, latitude, longitude, app=app)
    except (ImportError, ImproperlyConfigured) as error:  # ImportError before Celery 5.7
        raise ImproperlyConfigured(NEEDS_EPHEM) from error


def next_event(schedule: Any, after: datetime) -> datetime | None:
    """Return the first event of a ``solar`` schedule after ``after``, in UTC and whole seconds.

    Returns None if there's no event within 400 days.
    """
    place = str(schedule.lat), str(schedule.lon)
    start = (as_utc(after) - EPHEM_EPOCH) / DAY
    half = int((start + float(schedule.lon) / 360) * 2) - 3
    end = half + LOOK_AHEAD
    try:
        while half < end:
            spend(HALF_DAY)
            seconds, step = _event_in(schedule.event, place, half)
            half += step
            if seconds is not None:
                instant = EPHEM_EPOCH + timedelta(seconds=seconds)
                if instant > after:
                    return instant
    except TooManyStepsError:
        raise
    except (OverflowError, ValueError):
        pass  # the search reached the year 9999, or the coordinates are invalid
    return None


@lru_cache(maxsize=4096)
def _event_in(event: str, place: Place, half: int) -> tuple[int | None, int]:
    """Return the second of the event in a half day, or None, and how many half days to skip."""
    if event == "solar_noon":
        return (_extreme(place, half), 2) if half % 2 else (None, 1)
    low, high = _extreme(place, half), _extreme(place, half + 1)
    before, after = _height(event, place, low), _height(event, place, high)
    if (before < 0) == (after < 0):
        return None, max(1, int(min(abs(before), abs(after)) / DEGREES_A_DAY) * 2)
    if (before < 0) != event.startswith(("dawn", "sunrise")):
        return None, 1
    crossed = bisect_left(
        range(low, high),
        True,
        key=lambda second: (_height(event, place, second) < 0) == (after < 0),
    )
    return low + crossed, 1


def _height(event: str, place: Place, second: int) -> float:
    """Return the sun's height above the horizon that defines an event, in degrees.

    That's its upper edge for sunrise and sunset, and its centre for dawn and dusk.
    """
    observer, sun = _observed(place)
    observer.date = second / SECONDS
    sun.compute(observer)
    horizon = HORIZONS.get(event.partition("_")[2], SUNRISE)
    return degrees(sun.alt if "_" in event else sun.alt + sun.radius) - horizon


def _observed(place: Place) -> tuple[Any, Any]:
    ephem = import_module("ephem")  # Celery's solar requires the ephem package
    observer = ephem.Observer()
    observer.lat, observer.lon = place
    observer.elevation = observer.pressure = 0
    return observer, ephem.Sun()


@lru_cache(maxsize=4096)
def _extreme(place: Place, half: int) -> int:
    """Return the second at which the sun is at its highest (odd ``half``) or lowest (even).

    Half days are counted from ephem's epoch: in mean solar time, 0 is around 00:00 and 1 around
    12:00 of 1899-12-31.
    """
    observer, sun = _observed(place)
    search = observer.next_transit if half % 2 else observer.next_antitransit
    found: float = search(sun, start=half / 2 - float(place[1]) / 360 - 0.5 - EARLY)
    return ceil(found * SECONDS)
