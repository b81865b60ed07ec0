"""Prints warnings about entries that are valid but probably misspelt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from redbeat.entry import RedBeatSchedulerEntry
from redbeat.management.task_names import NameChecker, UnknownName

from .console import Console

__all__ = ("NameWarnings", "warn_of_unknown_names")

#: Maximum number of different warnings to print.
MAX_PRINTED: Final = 20


@dataclass
class Found:
    """An unknown name: its first entry, the warning, and the number of other entries with it."""

    entry: str
    warning: str
    others: int = 0

    @property
    def text(self) -> str:
        """The warning with the entries that it is about."""
        others = "1 other entry" if self.others == 1 else f"{self.others:,} other entries"
        return f"{self.entry}{f' and {others}' if self.others else ''}: {self.warning}"


class NameWarnings:
    """Collects the unknown names of many entries, and prints one warning for each name."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._checker: NameChecker | None = None
        self._problem = ""
        self._found: dict[UnknownName, Found] = {}
        self._more = 0

    def check(self, entry: RedBeatSchedulerEntry) -> None:
        """Check the names of an entry; keep the first :data:`MAX_PRINTED` unknown names."""
        if self._problem:
            return
        try:
            checker = self._checker = self._checker or NameChecker(self._console.app)
            for unknown in checker.unknown(entry):
                self._add(checker, unknown, str(entry.name))
        except Exception as error:  # the modules of an app raise any error when they are imported
            self._problem = f"{type(error).__name__}: {error}"

    def _add(self, checker: NameChecker, unknown: UnknownName, name: str) -> None:
        found = self._found.get(unknown)
        if found is not None:
            found.others += 1
        elif len(self._found) < MAX_PRINTED:
            self._found[unknown] = Found(name, checker.warning(unknown))
        else:
            self._more += 1

    def show(self) -> None:
        """Print the warnings."""
        console = self._console
        for found in self._found.values():
            console.warn(found.text)
        if self._more:
            entries = "1 entry" if self._more == 1 else f"{self._more:,} entries"
            console.warn(f"other unknown names, in {entries}, are not listed")
        if self._problem:
            problem = f"task names are not checked: the tasks cannot load: {self._problem}"
            console.warn(str(problem))


def warn_of_unknown_names(console: Console, *entries: RedBeatSchedulerEntry) -> None:
    """Print the warnings about the names of these entries."""
    warnings = NameWarnings(console)
    for entry in entries:
        warnings.check(entry)
    warnings.show()
