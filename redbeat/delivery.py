"""How runs are delivered: exactly once, at least once, or at most once."""

from __future__ import annotations

from typing import Final

__all__ = ("AT_LEAST_ONCE", "AT_MOST_ONCE", "DELIVERIES", "EXACTLY_ONCE", "OF_AN_APP")

#: Published and recorded in one step, by the Redis that is broker and schedule.
EXACTLY_ONCE: Final = "exactly_once"

#: Published first and recorded afterwards: a beat that dies in between has it sent again.
AT_LEAST_ONCE: Final = "at_least_once"

#: Recorded first and published afterwards: a beat that dies in between loses it.
AT_MOST_ONCE: Final = "at_most_once"

#: What an entry may choose, and an app.
DELIVERIES: Final = (AT_LEAST_ONCE, AT_MOST_ONCE)
OF_AN_APP: Final = (EXACTLY_ONCE, *DELIVERIES)
