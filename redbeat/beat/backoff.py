"""How long to wait after so many failures in a row."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ("BackOff",)


@dataclass(frozen=True, slots=True)
class BackOff:
    """Waits that double from ``first`` to ``longest`` seconds."""

    first: float
    longest: float

    def after(self, failures: int) -> float:
        """Return the seconds to wait after ``failures`` in a row; 0 after none."""
        return min(self.first * 2.0 ** min(failures - 1, 32), self.longest) if failures else 0.0
