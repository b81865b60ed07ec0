"""``python -m benchmarks.spread`` measures how evenly ``spread=3600`` distributes hourly entries.

The ratio of a set of names is the number of entries in the fullest minute of the hour, divided by
the mean of all 60 minutes. For each kind of name, the table has the smallest, the median and the
largest ratio of 100 sets of 10,000 names.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from uuid import UUID

from redbeat.entries.decide import spread_fraction

__all__ = ("KINDS", "main", "ratio")

ENTRIES, SETS, MINUTES = 10_000, 100, 60

#: Kind of names -> a function that returns a set of names of this kind.
KINDS: dict[str, Callable[[int], list[str]]] = {
    "entry-42": lambda number: [f"entry-{at}" for at in _numbers(number)],
    "tenant-0042:report": lambda number: [f"tenant-{at:04}:report" for at in _numbers(number)],
    "UUIDs": lambda number: _uuids(random.Random(number)),
}


def _numbers(number: int) -> range:
    return range(number * ENTRIES, (number + 1) * ENTRIES)


def _uuids(numbers: random.Random) -> list[str]:
    return [str(UUID(int=numbers.getrandbits(128), version=4)) for _ in range(ENTRIES)]


def ratio(names: Iterable[str]) -> float:
    """Return the number of entries in the fullest minute, divided by the mean of all minutes."""
    counts = Counter(int(spread_fraction(name) * MINUTES) for name in names)
    return max(counts.values()) / (counts.total() / MINUTES)


def main(argv: Sequence[str]) -> None:
    """Measure the ratios and print the table."""
    count = int(argv[0]) if argv else SETS
    print(
        f"ratio of the peak to the mean of {ENTRIES:,} hourly entries: "
        "minimum, median, maximum, number of sets with a ratio above 1.2"
    )
    for kind, names in KINDS.items():
        found = sorted(ratio(names(number)) for number in range(count))
        above = sum(value > 1.2 for value in found)
        numbers = f"{found[0]:.2f} {found[count // 2]:.2f} {found[-1]:.2f}"
        print(f"{kind:20} {numbers}  {above} of {count}")


if __name__ == "__main__":
    main(sys.argv[1:])
