"""What a run is worth: to be sent at least once, or at most once."""

from __future__ import annotations

from typing import Final

__all__ = ("AT_LEAST_ONCE", "AT_MOST_ONCE", "DELIVERIES")

#: Published first and recorded afterwards: a beat that dies in between has it sent again.
AT_LEAST_ONCE: Final = "at_least_once"

#: Recorded first and published afterwards: a beat that dies in between loses it.
AT_MOST_ONCE: Final = "at_most_once"

DELIVERIES: Final = (AT_LEAST_ONCE, AT_MOST_ONCE)
