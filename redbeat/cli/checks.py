"""Prints warnings about task names and option names that are probably misspelt."""

from __future__ import annotations

from collections import Counter
from typing import Final

from redbeat.entry import RedBeatSchedulerEntry
from redbeat.management.task_names import NameChecker
from redbeat.presentation.describe import rule_of
from redbeat.presentation.rule_text import cron_warning

from .command import Console

#: Maximum number of different warnings to print.
MAX_PRINTED: Final = 20


class NameWarnings:
    """Collects unknown names of tasks and options, and prints one warning for each name."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._checker: NameChecker | None = None
        self._problem = ""
        #: Warning about a name -> the first entry that uses the name.
        self._warnings: dict[str, str] = {}
        #: Warning -> number of its entries. The key None counts the warnings that are not kept.
        self._counts: Counter[str | None] = Counter()

    def check(self, entry: RedBeatSchedulerEntry) -> None:
        """Check the task and the options of an entry, and count unknown names."""
        if self._problem:
            return
        try:
            checker = self._checker = self._checker or NameChecker(self._console.app)
            for warning in checker.warnings(entry):
                if len(self._warnings) < MAX_PRINTED:
                    self._warnings.setdefault(warning, str(entry.name))
                self._counts[warning if warning in self._warnings else None] += 1
        except Exception as error:  # the import of an app's modules can raise any error
            self._problem = f"{type(error).__name__}: {error}"

    def show(self) -> None:
        """Print the warnings that :meth:`check` has stored."""
        warn = self._console.warn
        for warning, entry in self._warnings.items():
            count = self._counts[warning] - 1
            others = "1 other entry" if count == 1 else f"{count:,} other entries"
            warn(f"{entry}{f' and {others}' if count else ''}: {warning}")
        more = self._counts[None]
        if more:
            entries = "1 entry" if more == 1 else f"{more:,} entries"
            warn(f"{entries} with other unknown names {'is' if more == 1 else 'are'} not listed")
        if self._problem:
            warn(f"task names are not checked, because the tasks cannot be loaded: {self._problem}")


def warn_of_crontabs(console: Console, *entries: RedBeatSchedulerEntry) -> None:
    """Print a warning for each crontab that cron runs on other days than Celery."""
    for entry in entries:
        kind, text = rule_of(entry.schedule) or ("", "")
        if kind == "cron" and (warning := cron_warning(text)):
            console.warn(f"{entry.name}: {warning}")


def warn_of_unknown_names(console: Console, *entries: RedBeatSchedulerEntry) -> None:
    """Print a warning for each unknown task name and option name of the entries."""
    warnings = NameWarnings(console)
    for entry in entries:
        warnings.check(entry)
    warnings.show()
