"""Prints warnings about entries that are valid but probably misspelt."""

from __future__ import annotations

from collections import Counter
from typing import Final

from redbeat.entry import RedBeatSchedulerEntry
from redbeat.management.task_names import NameChecker, UnknownName

from .command import Console

__all__ = ("NameWarnings", "warn_of_unknown_names")

#: Maximum number of different warnings to print.
MAX_PRINTED: Final = 20


class NameWarnings:
    """Collects the unknown names of many entries, and prints one warning for each name."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._checker: NameChecker | None = None
        self._problem = ""
        #: The warning about each of the first unknown names, with the first entry that has it.
        self._warnings: dict[UnknownName, tuple[str, str]] = {}
        #: The number of entries with each of these names, and with other unknown names (None).
        self._counts: Counter[UnknownName | None] = Counter()

    def check(self, entry: RedBeatSchedulerEntry) -> None:
        """Check the names of an entry; keep the first :data:`MAX_PRINTED` unknown names."""
        if self._problem:
            return
        try:
            checker = self._checker = self._checker or NameChecker(self._console.app)
            for unknown in checker.unknown(entry):
                if unknown not in self._warnings and len(self._warnings) < MAX_PRINTED:
                    self._warnings[unknown] = str(entry.name), checker.warning(unknown)
                self._counts[unknown if unknown in self._warnings else None] += 1
        except Exception as error:  # the modules of an app raise any error when they are imported
            self._problem = f"{type(error).__name__}: {error}"

    def show(self) -> None:
        """Print the warnings."""
        warn = self._console.warn
        for unknown, (entry, warning) in self._warnings.items():
            count = self._counts[unknown] - 1
            others = "1 other entry" if count == 1 else f"{count:,} other entries"
            warn(f"{entry}{f' and {others}' if count else ''}: {warning}")
        more = self._counts[None]
        if more:
            entries = "1 entry" if more == 1 else f"{more:,} entries"
            warn(f"other unknown names, in {entries}, are not listed")
        if self._problem:
            warn(f"task names are not checked: the tasks cannot load: {self._problem}")


def warn_of_unknown_names(console: Console, *entries: RedBeatSchedulerEntry) -> None:
    """Print the warnings about the names of these entries."""
    warnings = NameWarnings(console)
    for entry in entries:
        warnings.check(entry)
    warnings.show()
