"""Reads entries from a crontab file that names tasks instead of shell commands.

A line of the file is ``minute hour day-of-month month day-of-week task [kwargs]`` or
``@daily task [kwargs]``, with ``kwargs`` as a JSON object. The line ``CRON_TZ=Europe/Paris`` sets
the time zone of the following lines. Empty lines and lines that begin with ``#`` are ignored.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from celery.schedules import crontab

from redbeat.calendar.cron import check_cron_item, without_nickname
from redbeat.decoder import MAX_TEXT
from redbeat.entry import RedBeatSchedulerEntry
from redbeat.errors import InvalidEntryError
from redbeat.presentation.describe import CRON_FIELDS

from .incoming import Incoming, fail, json_from, read_safely, zone_from

if TYPE_CHECKING:
    from redbeat.schedule import Schedule

__all__ = ("read_crontab",)

#: Maximum length of a line, in bytes.
MAX_LINE: Final = MAX_TEXT

ASSIGNMENT: Final = re.compile(r"(\w+)\s*=\s*(.*)")

#: Matches an item of the weekday field, in which cron accepts 7 for Sunday, but Celery does not.
WITH_SEVEN: Final = re.compile(r"([0-7])(?:-([0-7]))?(?:/([1-9]))?")


def read_crontab(schedule: Schedule, lines: Iterable[bytes]) -> Iterator[Incoming]:
    """Yield an entry per line; the entry name is the task and a number, such as ``proj.sync-1``."""
    task_counts: Counter[str] = Counter()
    zone: str | None = None
    for number, line in enumerate(lines, 1):
        text, where = line.decode("utf-8", "backslashreplace").strip(), f"line {number}"
        if not text or text.startswith("#"):
            continue
        try:
            if len(line) > MAX_LINE:
                raise InvalidEntryError("line", f"is longer than {MAX_LINE} bytes")
            assignment = ASSIGNMENT.fullmatch(text)
            if assignment:
                zone = _zone(*assignment.groups())
                continue
            fields, task, kwargs = _split(text)
        except InvalidEntryError as error:
            yield fail(where, error)
            continue
        task_counts[task] += 1
        name = f"{task}-{task_counts[task]}"
        make = partial(schedule.entry_class, name, task, app=schedule.app, timezone=zone)
        yield read_safely(where, partial(_read, where, make, fields, kwargs))


def _read(
    where: str, make: Callable[..., RedBeatSchedulerEntry], fields: list[str], kwargs: str
) -> Incoming:
    arguments = json_from("kwargs", kwargs or "{}", dict)
    return Incoming(where, make(schedule=_schedule(fields), kwargs=arguments))


def _zone(name: str, value: str) -> str | None:
    if name not in ("CRON_TZ", "TZ"):
        problem = (
            f"{name:.60} is not supported; use CRON_TZ to set the time zone of the following lines"
        )
        raise InvalidEntryError("assignment", problem)
    value = value.strip("\"'")
    zone_from(name, value)
    return value


def _split(text: str) -> tuple[list[str], str, str]:
    """Return the five schedule fields, the task name, and the kwargs as JSON ("" for none)."""
    first, *rest = text.split(None, 1)
    if first.startswith("@"):
        try:
            text = " ".join((without_nickname(first), *rest))
        except ValueError as error:
            raise InvalidEntryError("schedule", str(error)) from error
    fields = text.split(None, 6)
    if len(fields) < 6:
        problem = "is missing; write minute hour day-of-month month day-of-week task [kwargs]"
        raise InvalidEntryError("task", problem)
    return fields[:5], fields[5], fields[6] if len(fields) > 6 else ""


def _schedule(texts: list[str]) -> crontab:
    fields = dict(zip(CRON_FIELDS, texts, strict=True))
    if not any(fields[name].startswith("*") for name in ("day_of_month", "day_of_week")):
        problem = (
            "is given together with day_of_month: cron runs the task if either field matches, "
            "Celery only if both fields match; write one line for each field"
        )
        raise InvalidEntryError("day_of_week", problem)
    fields["day_of_week"] = ",".join(map(_weekday, fields["day_of_week"].split(",")))
    for name, text in fields.items():
        try:
            for item in text.split(","):
                check_cron_item(name, item)
            crontab(**{name: text})
        except Exception as error:  # Celery's crontab parser raises many exception types
            raise InvalidEntryError(name, f"{text!r:.60} is not valid: {error}") from error
    return crontab(**fields)


def _weekday(item: str) -> str:
    """Return an item of the weekday field with 7 replaced by 0, because Celery rejects 7."""
    match = WITH_SEVEN.fullmatch(item)
    if match is None or "7" not in match.groups()[:2]:
        return item
    first, last, step = match.groups()
    days = range(int(first), int(last or first) + 1, int(step or 1))
    return ",".join(str(day % 7) for day in days) or item
