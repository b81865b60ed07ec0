"""How long the suite goes on: short by default, full when asked for."""

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
    """Which of two sizes of a test is run."""

    full: bool

    def pick(self, short: T, full: T) -> T:
        """Return what goes with the profile."""
        return full if self.full else short

    def trials(self, full: int) -> int:
        """Return how often to try: ``full``, or a tenth of it, once at least."""
        return self.pick(max(1, full // 10), full)


def chosen(option: str | None) -> Profile:
    """Return the profile named by the option, else by the environment; ValueError for others."""
    name = option or os.environ.get(ENVIRONMENT) or NAMES[0]
    if name not in NAMES:
        raise ValueError(f"{ENVIRONMENT} is {name!r}, it must be one of {', '.join(NAMES)}")
    return Profile(name == "full")
