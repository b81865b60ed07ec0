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
from redbeat.storage.commands import ESCAPED, GLOB_SPECIAL
from redbeat.storage.store import store_of

#: Maximum number of names to offer.
MAX_NAMES: Final = 100

#: Maximum number of scans for names. Each scan reads about 2000 entries.
MAX_PARTS: Final = 500

#: Matches each character that must be escaped within a word of bash.
SPECIAL: Final = re.compile(r"([^\w@%+=:,./-])")

#: Global option of ``celery`` -> the environment variable to which Celery copies the option.
VARIABLES: Final = {
    "broker": "CELERY_BROKER_URL",
    "config": "CELERY_CONFIG_MODULE",
    "loader": "CELERY_LOADER",
}

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
            names = names_of(_app_of(ctx), incomplete)
            return [CompletionItem(_quoted(name)) for name in islice(names, MAX_NAMES)]
        except (Exception, SystemExit):
            return []

    return complete


def _app_of(ctx: click.Context) -> Any:
    """Return the app that the command line names; Celery loads no app during a completion."""
    options = ctx.find_root().params
    for name, variable in VARIABLES.items():
        if options.get(name):
            os.environ[variable] = str(options[name])
    if options.get("workdir"):
        os.chdir(options["workdir"])
    app = options.get("app")
    return find_app(app) if isinstance(app, str) else app


def _quoted(name: str) -> str:
    """Return a name, escaped for bash. Other shells quote completions themselves.

    Each escape has two backslashes, because the bash script of click removes one backslash.
    """
    is_bash = os.environ.get("_CELERY_COMPLETE", "").startswith("bash")
    return SPECIAL.sub(r"\\\\\1", name) if is_bash else name


def complete_entries(app: Celery, start: str) -> Iterator[str]:
    store = store_of(app, unretried(client_of(app)))
    # Shards have different prefixes, so the pattern begins with a wildcard instead of a prefix.
    prefix = "" if ensure_conf(app).shards > 1 else store.keys.prefix
    glob = f"{'' if prefix else '*'}{GLOB_SPECIAL.sub(ESCAPED, prefix + start)}*"
    for members in islice(store.scan(glob), MAX_PARTS):
        for key, _ in members:
            name = store.keys.name_of(key)
            # Skip names with control characters, which could change the command line.
            if name.startswith(start) and printable(name) == name:
                yield name


def _tasks(app: Celery, start: str) -> Iterator[str]:
    return (name for name in sorted(registered_tasks(app)) if name.startswith(start))


#: Completion functions for command parameters that are names of entries or tasks.
entry_names: Final = _complete(complete_entries)
task_names: Final = _complete(_tasks)
