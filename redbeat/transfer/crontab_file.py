"""Reads entries from a crontab file that names tasks instead of shell commands.

A line is ``minute hour day-of-month month day-of-week task [kwargs]`` or ``@daily task [kwargs]``,
where ``kwargs`` is a JSON object. The line ``CRON_TZ=Europe/Paris`` sets the time zone of the lines
below it. Empty lines, comments (``#``) and variables that don't affect tasks, such as ``MAILTO``,
are ignored.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final

from celery.schedules import crontab

from redbeat import InvalidEntryError, Schedule
from redbeat.decoder import MAX_TEXT
from redbeat.presentation.cron_text import celery_field, without_nickname
from redbeat.presentation.rule_text import CRON_FIELDS
from redbeat.printing import get_logger

from .incoming import Incoming, json_from, read_safely, zone_from

logger = get_logger("celery.beat")

#: In bytes.
MAX_LINE: Final = MAX_TEXT

ASSIGNMENT: Final = re.compile(r"[\"']?(\w+)[\"']?\s*=\s*(.*)")

#: Variables that change when cron runs a line. All others only reach its command.
TIMING: Final = re.compile(r"(CRON_)?TZ|\w*DELAY|START_HOURS_RANGE", re.IGNORECASE)


def read_crontab(schedule: Schedule, lines: Iterable[bytes]) -> Iterator[Incoming]:
    """Yield an entry per line, named after its task and a number, such as ``proj.sync-1``."""
    task_counts: Counter[str] = Counter()
    zone: str | None = None
    unclear = ""  # the line after which the time zone is not known
    for number, line in enumerate(lines, 1):
        text, where = line.decode("utf-8", "backslashreplace").strip(), f"line {number}"
        if not text or text.startswith("#"):
            continue
        try:
            if len(line) > MAX_LINE:
                raise InvalidEntryError("line", f"is longer than {MAX_LINE} bytes")
            assignment = ASSIGNMENT.fullmatch(text)
            if assignment and not TIMING.fullmatch(assignment[1]):
                logger.warning("%s: %s has no effect on tasks and is ignored", where, assignment[1])
                continue
            if assignment:
                unclear = where if assignment[1].endswith("TZ") else unclear
                zone, unclear = _zone(*assignment.groups()), ""
                continue
            if unclear:
                raise InvalidEntryError("timezone", f"is not clear because of {unclear}")
            fields, task, kwargs = _split(text)
        except InvalidEntryError as error:
            yield Incoming(where, problem=str(error))
            continue
        task_counts[task] += 1
        made = {"name": f"{task}-{task_counts[task]}", "task": task, "timezone": zone}
        yield read_safely(where, _read, schedule, made, fields, kwargs)


def _read(
    where: str, schedule: Schedule, made: dict[str, Any], fields: list[str], kwargs: str
) -> Incoming:
    made |= {"schedule": _schedule(fields), "kwargs": json_from("kwargs", kwargs or "{}", dict)}
    return Incoming(where, schedule.entry_class(**made, app=schedule.app))


def _zone(name: str, value: str) -> str | None:
    value = value.strip("\"'")
    if name == "TZ":
        problem = (
            "means the time zone of the following lines in some crons, but only of their commands "
            f"in others; write CRON_TZ={value:.60} if the lines run in this time zone, or remove "
            "TZ if they do not"
        )
        raise InvalidEntryError(name, problem)
    if name != "CRON_TZ":
        problem = (
            f"{name:.60} is not supported; use CRON_TZ to set the time zone of the following lines"
        )
        raise InvalidEntryError("assignment", problem)
    zone_from(name, value)
    return value


def _split(text: str) -> tuple[list[str], str, str]:
    """Return the five schedule fields, the task name, and the kwargs as JSON or ""."""
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
    celery_fields = {}
    for name, text in fields.items():
        try:
            celery_fields[name] = celery_field(name, text)
            crontab(**{name: celery_fields[name]})
        except Exception as error:  # Celery's crontab parser raises many exception types
            raise InvalidEntryError(name, f"{text!r:.60} is not valid: {error}") from error
    if not any(fields[name].startswith("*") for name in ("day_of_month", "day_of_week")):
        problem = (
            "is given together with day_of_month: cron runs the task if either field matches, "
            "Celery only if both fields match; write one line for each field"
        )
        raise InvalidEntryError("day_of_week", problem)
    return crontab(**celery_fields)
