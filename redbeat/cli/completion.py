"""Completes the names of entries and tasks in the shell."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from glob import escape
from itertools import islice
from typing import Any, Final

import click
from celery import Celery
from celery.app.utils import find_app
from click.shell_completion import CompletionItem

from redbeat.management.task_names import registered_tasks
from redbeat.printing import printable

from .command import schedule_of

#: Maximum number of names to offer.
MAX_NAMES: Final = 100

#: Matches each character that must be escaped within a word of bash.
SPECIAL: Final = re.compile(r"([^\w@%+=:,./-])")

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _complete(names_of: Callable[[Any, str], Iterable[str]]) -> Complete:
    """Return a completion function; ``names_of`` gets the app and the text typed so far.

    If the app cannot be loaded or Redis cannot be reached, the completion function offers no names.
    Errors are not reported, because a message would appear in the user's command line.
    """

    def complete(
        ctx: click.Context, _param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        try:
            app = ctx.find_root().params["app"]  # Celery loads no app during a completion
            names = names_of(find_app(app) if isinstance(app, str) else app, incomplete)
            return [CompletionItem(_quoted(name)) for name in islice(names, MAX_NAMES)]
        except (Exception, SystemExit):
            return []

    return complete


def _quoted(name: str) -> str:
    """Return a name, escaped for bash. Other shells quote completions themselves.

    Each escape has two backslashes, because the bash script of click removes one backslash.
    """
    is_bash = os.environ.get("_CELERY_COMPLETE", "").startswith("bash")
    return SPECIAL.sub(r"\\\\\1", name) if is_bash else name


def complete_entries(app: Celery, start: str) -> Iterator[str]:
    for record in schedule_of(app).records(f"{escape(start)}*"):
        # Skip names with control characters, which could change the command line.
        if printable(record.name) == record.name:
            yield record.name


def _tasks(app: Celery, start: str) -> Iterator[str]:
    return (name for name in sorted(registered_tasks(app)) if name.startswith(start))


#: Completion functions for command parameters that are names of entries or tasks.
entry_names: Final = _complete(complete_entries)
task_names: Final = _complete(_tasks)
