"""Completes the names of entries and tasks in the shell."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final

import click
from celery import Celery
from celery.app.utils import find_app
from click.shell_completion import CompletionItem

from redbeat.config import ensure_conf
from redbeat.management.task_names import registered_tasks
from redbeat.printing import printable
from redbeat.storage.client import client_of, unretried
from redbeat.storage.reading import ESCAPED, GLOB_SPECIAL, START
from redbeat.storage.store import store_of

__all__ = ("entry_names", "task_names")

#: Maximum number of names to offer.
MAX_NAMES: Final = 100

#: Maximum number of parts of 2000 entries to scan for names.
MAX_PARTS: Final = 500

#: Matches a character that bash would not take as a part of a word.
SPECIAL: Final = re.compile(r"([^\w@%+=:,./-])")

#: The global options of ``celery`` that it passes on as environment variables.
VARIABLES: Final = {
    "broker": "CELERY_BROKER_URL",
    "config": "CELERY_CONFIG_MODULE",
    "loader": "CELERY_LOADER",
}

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _complete(names_of: Callable[[Any, str], Iterable[str]]) -> Complete:
    """Return a completion function; ``names_of`` gets the app and the start of the name.

    The function offers nothing if the app cannot be loaded or Redis cannot be reached, because a
    message would end up in the command line of the user.
    """

    def complete(
        ctx: click.Context,
        param: click.Parameter,  # noqa: ARG001 - click's signature
        incomplete: str,
    ) -> list[CompletionItem]:
        try:
            names = names_of(_app_of(ctx), incomplete)
            return [CompletionItem(_quoted(name)) for name in islice(names, MAX_NAMES)]
        except (Exception, SystemExit):
            return []

    return complete


def _app_of(ctx: click.Context) -> Any:
    """Return the app of the command line that is being completed; Celery has not loaded it yet."""
    options = ctx.find_root().params
    for name, variable in VARIABLES.items():
        if options.get(name):
            os.environ[variable] = str(options[name])
    if options.get("workdir"):
        os.chdir(options["workdir"])
    app = options.get("app")
    return find_app(app) if isinstance(app, str) else app


def _quoted(name: str) -> str:
    """Return a name for the shell; bash inserts a completion as it is, other shells quote it.

    The script that click gives to bash removes one of two backslashes.
    """
    is_bash = os.environ.get("_CELERY_COMPLETE", "").startswith("bash")
    return SPECIAL.sub(r"\\\\\1", name) if is_bash else name


def _entries(app: Celery, start: str) -> Iterator[str]:
    store = store_of(app, unretried(client_of(app)))
    # Shards have different prefixes, so the pattern begins with a wildcard instead of the prefix.
    prefix = "" if ensure_conf(app).shards > 1 else store.keys.prefix
    glob = f"{'' if prefix else '*'}{GLOB_SPECIAL.sub(ESCAPED, prefix + start)}*"
    cursor = START
    for _ in range(MAX_PARTS):
        cursor, members = store.scan(cursor, glob)
        for key, _ in members:
            name = store.keys.name_of(key)
            # A name with control characters would change the command line.
            if name.startswith(start) and printable(name) == name:
                yield name
        if cursor == START:
            return


def _tasks(app: Celery, start: str) -> Iterator[str]:
    return (name for name in sorted(registered_tasks(app)) if name.startswith(start))


#: Completion functions for parameters of commands.
entry_names: Final = _complete(_entries)
task_names: Final = _complete(_tasks)
