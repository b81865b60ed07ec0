"""The length of a test run: short by default, full on request."""

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
    """The profile of a test run: short or full."""

    full: bool

    def pick(self, short: T, full: T) -> T:
        """Return the value for the current profile."""
        return full if self.full else short

    def trials(self, full: int) -> int:
        """Return ``full`` in the full profile, else a tenth of it, at least 1."""
        return self.pick(max(1, full // 10), full)


def chosen(option: str | None) -> Profile:
    """Return the profile from the option, or from the environment variable without an option.

    Raise ValueError for an unknown profile.
    """
    name = option or os.environ.get(ENVIRONMENT) or NAMES[0]
    if name not in NAMES:
        raise ValueError(f"{ENVIRONMENT} is {name!r}, it must be one of {', '.join(NAMES)}")
    return Profile(name == "full")
