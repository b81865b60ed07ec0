"""How long the suite runs: short by default, full on request."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TypeVar

__all__ = ("ENVIRONMENT", "Profile", "chosen")

T = TypeVar("T")

ENVIRONMENT = "REDBEAT_FAULTS"
NAMES = ("short", "full")


@dataclass(frozen=True)
class Profile:
    """The size of a test run: short or full."""

    full: bool

    def pick(self, short: T, full: T) -> T:
        """Return the value for this profile."""
        return full if self.full else short

    def trials(self, full: int) -> int:
        """Return the number of trials: ``full``, or a tenth of it, at least one."""
        return self.pick(max(1, full // 10), full)


def chosen(option: str | None) -> Profile:
    """Return the profile of the option, else of the environment variable.

    Raises ValueError for an unknown profile.
    """
    name = option or os.environ.get(ENVIRONMENT) or NAMES[0]
    if name not in NAMES:
        raise ValueError(f"{ENVIRONMENT} is {name!r}, it must be one of {', '.join(NAMES)}")
    return Profile(name == "full")
