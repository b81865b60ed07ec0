"""The commands ``celery redbeat export`` and ``celery redbeat import``."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Final

import click

from redbeat import Schedule
from redbeat.printing import plural
from redbeat.transfer import crontab_file, django, importing, shelve_file
from redbeat.transfer.incoming import Incoming, Problem, UnreadableSourceError, opened
from redbeat.transfer.jsonlines import Exported, export_lines, read_lines

from . import apply
from .command import Console, Exit, command, failure, progress
from .edit import warn_of_unknown_names
from .options import argument, flag, option, option_error, reading

SHELVE: Final = "celery-shelve"
DJANGO: Final = "django-celery-beat"

#: The formats that are read from a stream, which may be standard input.
READERS: Final[dict[str, Callable[[Schedule, IO[bytes]], Iterator[Incoming]]]] = {
    "jsonlines": read_lines,
    "crontab": crontab_file.read_crontab,
    DJANGO: django.read_fixture,
}

#: All import formats, the default first.
FORMATS: Final = (*READERS, SHELVE)


def read_source(file_format: str, schedule: Schedule, path: str) -> Iterator[Incoming]:
    """Yield the entries of a file; ``-`` is standard input.

    Raises :exc:`UnreadableSourceError` if it cannot be read.
    """
    if file_format == SHELVE:
        if path == "-":
            raise UnreadableSourceError(
                f"{SHELVE} cannot be read from standard input: give the path of the file"
            )
        yield from shelve_file.read_shelve(schedule, path)
    else:
        with opened(path) as file:
            yield from READERS[file_format](schedule, file)


#: Maximum number of problems to print of an export, and of an import.
MAX_PRINTED: Final = 20
MAX_PROBLEMS: Final = 100

#: For those who take the exported entries back to RedBeat 2.
ROLLBACK: Final = (
    "RedBeat 2 ignores calendars: after a rollback, entries with a calendar run on excluded days"
)


@command("export")
@argument("file", metavar="[FILE]", default="-", help="File to write, instead of standard output.")
@flag("--history", "Include the last runs and the number of runs per entry.")
def export(console: Console, file: str, history: bool) -> None:
    """Write all calendars and entries to FILE as JSON lines.

    The default FILE is standard output. Unreadable entries and calendars are not exported: the
    command prints a warning for each, and the exit code is 1. An existing FILE is replaced only
    after the export is complete.
    """
    lines = export_lines(console.schedule, history)
    count, calendar_count, unreadable = 0, 0, []
    with _output(file) as out, progress(console, "Exporting", len(console.schedule)) as advance:
        for exported in lines:
            if exported.problem:
                unreadable.append(exported)
                continue
            out.write(exported.line + "\n")
            calendar_count += exported.is_calendar
            count += not exported.is_calendar
            advance(not exported.is_calendar)
    _report_export(console, file, count, calendar_count, unreadable)


def _report_export(
    console: Console, file: str, count: int, calendar_count: int, unreadable: list[Exported]
) -> None:
    for exported in unreadable[:MAX_PRINTED]:
        console.warn(f"{exported.label} is not exported: {exported.problem}")
    if console.as_json and file != "-":
        left_out = [exported.label for exported in unreadable]
        console.emit({"exported": count, "calendars": calendar_count, "unreadable": left_out})
    else:
        console.note(f"Exported {plural(count, 'entry', 'entries')}")
    if calendar_count:
        console.note(f"Exported {plural(calendar_count, 'calendar')}; {ROLLBACK}")
    if unreadable:
        some = plural(len(unreadable), "unreadable entry", "unreadable entries")
        message = f"{some} not exported; to list causes, run: celery redbeat doctor"
        raise failure(message, Exit.FAILED)


@contextmanager
def _output(file: str) -> Iterator[IO[str]]:
    """Yield a temporary file that replaces ``file`` at the end, unless there is an error."""
    if file == "-":
        yield sys.stdout
        return
    part = Path(f"{file}.part")
    try:
        with part.open("w", encoding="ascii") as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        part.replace(file)
    except OSError as error:
        raise failure(f"{file} cannot be written: {error.strerror}", Exit.FAILED) from error
    finally:
        part.unlink(missing_ok=True)


@command("import")
@argument("file", metavar="[FILE]", required=False, help="File to read; - is standard input.")
@option(
    "--format",
    "file_format",
    alias="--from",
    type=click.Choice(FORMATS),
    default=FORMATS[0],
    help="Format of FILE.",
)
@option(
    "--database",
    metavar="[ALIAS]",
    is_flag=False,
    flag_value=django.DEFAULT_ALIAS,
    example="default",
    help="Read this database of the Django project instead of FILE.",
)
@option(
    "--on-conflict",
    type=click.Choice(importing.ON_CONFLICT),
    default=importing.ON_CONFLICT[0],
    help="What to do if an entry is already stored with different content.",
)
@flag("--skip-invalid", "Report invalid entries, and import the others.")
@flag("--prune", "Delete dynamic entries that are not in FILE.")
@flag("--dry-run", "Print what would be done with each entry, but write nothing.")
def import_(
    console: Console,
    file: str | None,
    file_format: str,
    database: str | None,
    on_conflict: str,
    skip_invalid: bool,
    prune: bool,
    dry_run: bool,
) -> None:
    """Import the calendars and entries of FILE.

    If FILE is -, the command reads standard input. The command checks all entries before it writes
    the first entry. If any entry is invalid, nothing is written and the exit code is 1, unless
    --skip-invalid is given.

    Formats:

    jsonlines is the output of "celery redbeat export".

    crontab has lines with minute, hour, day, month, weekday, TASK and optional KWARGS as JSON.

    django-celery-beat is the output of "manage.py dumpdata django_celery_beat". Without FILE, the
    command reads the database of the Django project that DJANGO_SETTINGS_MODULE names.

    celery-shelve is celerybeat-schedule, the file of Celery's own scheduler.
    """
    if prune and skip_invalid:
        problem = "cannot delete entries with --skip-invalid: the invalid ones may be stored"
        raise option_error(console.ctx, "prune", problem)
    source_name, incoming = _source(console, file, file_format, database)
    note = partial(apply.print_change, console) if dry_run else None
    skip = partial(_print_problem, console) if skip_invalid else None
    importer = importing.Importer(console.schedule, on_conflict, note, skip)
    bar = progress(console, "Checking", None, shown=not (dry_run or skip_invalid))
    with reading(source_name), bar as advance:
        importer.check(incoming, advance)
    _fail_on_problems(console, importer, source_name)
    warn_of_unknown_names(console, [ready.entry for ready in importer.planned])
    if not dry_run:
        to_write = importer.written["created"] + importer.written["changed"]
        with progress(console, "Importing", to_write) as advance:
            importer.write(advance)
    if prune:
        importer.prune(dry_run)
    _report(console, importer.written, importer.skipped, dry_run)


def _source(
    console: Console, file: str | None, file_format: str, database: str | None
) -> tuple[str, Iterator[Incoming]]:
    if database is not None and (file_format != DJANGO or file is not None):
        problem = f"only works with --format {DJANGO} and without FILE"
        raise option_error(console.ctx, "database", problem)
    if file is not None:
        return file, read_source(file_format, console.schedule, file)
    if file_format != DJANGO:
        problem = f"Missing argument 'FILE'; only --format {DJANGO} works without FILE"
        raise click.UsageError(problem, console.ctx)
    alias = database or django.DEFAULT_ALIAS
    return f"database {alias}", django.read_database(console.schedule, alias)


def _print_problem(console: Console, problem: Problem) -> None:
    if console.as_json:
        console.emit({"where": problem.where, "problem": problem.text})
    else:
        console.error(f"{problem.where}: {problem.text}")


def _fail_on_problems(console: Console, importer: importing.Importer, source_name: str) -> None:
    found = importer.problems or importer.conflicts
    for problem in found[:MAX_PROBLEMS]:
        _print_problem(console, problem)
    some = f"{plural(len(found), 'entry', 'entries')} of {source_name}"
    message = f"Nothing was written: {some} {'is' if len(found) == 1 else 'are'}"
    if importer.problems:
        raise failure(f"{message} invalid; --skip-invalid imports the others", Exit.FAILED)
    if found:
        choice = "--on-conflict keep or --on-conflict replace"
        message += f" already stored with different content; use {choice}"
        raise failure(message, Exit.CONFLICT)


def _report(console: Console, written: dict[str, int], skipped: int, dry_run: bool) -> None:
    parts = [f"{written[action]} {action}" for action in importing.ACTIONS]
    if written["calendars"]:
        parts.append(plural(written["calendars"], "calendar"))
    if skipped:
        parts.append(f"{skipped} skipped as invalid")
    done = "Dry run, nothing was written" if dry_run else "Imported"
    result = {**written, "skipped": skipped, "dry_run": dry_run}
    console.result(result, f"{done}: {', '.join(parts)}")
