"""Which tasks the entries of a schedule may name: ``redbeat_task_allowlist``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import translate
from typing import Any

from .errors import ConfigurationError

__all__ = ("SETTING", "TaskAllowlist", "read_allowlist")

SETTING = "redbeat_task_allowlist"


class TaskAllowlist:
    """Patterns as of :mod:`fnmatch`, upper and lower case told apart; one must match."""

    def __init__(self, patterns: tuple[str, ...]) -> None:
        self.patterns = patterns
        # Without a pattern nothing matches.
        self._any = re.compile("|".join(map(translate, patterns)) or r"(?!)")

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {', '.join(self.patterns)}>"

    def allows(self, task: Any) -> bool:
        """Return whether a task of this name may be sent."""
        return isinstance(task, str) and self._any.match(task) is not None

    def refusal(self, task: Any, options: Any) -> tuple[str, str] | None:
        """Return (field, what is wrong with it), None when nothing is.

        Options count too: callbacks (``link``, ``chain``, ``chord``) are signatures, which name
        tasks, and a header ``task`` takes the place of the name in the message.
        """
        named = [("task", task), *(("options", found) for found in tasks_in(options))]
        for field, name in named:
            if not self.allows(name):
                return (
                    field,
                    f"the task {name!r:.120} matches no pattern of {SETTING}; add it there",
                )
        return None


def tasks_in(value: Any) -> Iterator[Any]:
    """Yield what stands under ``task`` in ``value``, at any depth; as a pair too, in a list."""
    if isinstance(value, dict):
        if "task" in value:
            yield value["task"]
        for item in value.values():
            yield from tasks_in(item)
    elif isinstance(value, (list, tuple)):
        if len(value) == 2 and value[0] == "task":
            yield value[1]
        for item in value:
            yield from tasks_in(item)


def read_allowlist(value: Any) -> TaskAllowlist | None:
    """Return what the setting says, None for no limit; raises :exc:`ConfigurationError`."""
    if value is None:
        return None
    patterns = tuple(value) if isinstance(value, (list, tuple, set, frozenset)) else (None,)
    if not all(isinstance(pattern, str) and pattern for pattern in patterns):
        raise ConfigurationError(
            f"{SETTING} is {value!r}, it must be a list of patterns such as ['proj.tasks.*']"
        )
    return TaskAllowlist(patterns)
