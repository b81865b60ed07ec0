"""Times and durations as libraries such as pendulum make them: subclasses with other arithmetic."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo


class OddZone(ZoneInfo):
    """A zone of another library."""


class OddDatetime(datetime):
    """A datetime that knows only datetimes of its own class."""

    def __sub__(self, other: Any) -> Any:
        if type(other) is datetime:
            raise TypeError("can't subtract offset-naive and offset-aware datetimes")
        return super().__sub__(other)

    __rsub__ = __lt__ = __le__ = __gt__ = __ge__ = __sub__


class OddTimedelta(timedelta):
    """A duration that knows only durations of its own class."""

    def __mod__(self, other: timedelta) -> timedelta:
        if type(other) is timedelta:
            raise AttributeError("'datetime.timedelta' object has no attribute '_to_microseconds'")
        return super().__mod__(other)
