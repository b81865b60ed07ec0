"""``celery redbeat migrate-prefix``: a schedule under another key prefix."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from redbeat.beat.lock import SEEN_WITHIN, BeatInfo
from redbeat.config import ensure_conf
from redbeat.management.prefixes import copy_prefix
from redbeat.storage.client import client_of, unretried
from redbeat.storage.records import Keys
from redbeat.storage.store import Store

from .command import EX_CONFLICT, command, failure
from .console import Console, progress
from .options import option

__all__ = ("migrate_prefix",)


@command("migrate-prefix")
@click.argument("old")
@click.argument("new")
@option("--delete", is_flag=True, help="Remove what was copied from the old prefix.")
@option("--force", is_flag=True, help="Copy although a beat runs on one of the prefixes.")
def migrate_prefix(console: Console, old: str, new: str, delete: bool, force: bool) -> None:
    """Copy the entries under the key prefix OLD to the prefix NEW.

    With their histories, and what is known of them as entries of beat_schedule. What is under NEW
    already is never changed, so the command can be repeated. Set redbeat_key_prefix to NEW
    afterwards. No beat may run on either prefix meanwhile.
    """
    if not old or not new or old == new:
        raise click.UsageError(
            "give two prefixes that differ; for example: migrate-prefix redbeat: '{redbeat}:'"
        )
    client = unretried(client_of(console.app))
    if not force:
        for prefix in (old, new):
            _refuse_running_beat(console, client, prefix)
    with progress(console, "Copying", Store(client, Keys.under(old)).members()) as done:
        result = copy_prefix(client, old, new, delete, done)
    counts = asdict(result)
    if console.as_json:
        console.emit({"old": old, "new": new, **counts})
    else:
        console.note(", ".join(f"{count} {what}" for what, count in counts.items()))
        console.note(f"Set redbeat_key_prefix = {new!r} where that is not done yet")
    left = result.different + result.unreadable
    if left:
        message = (
            f"{result.different} entries are others of the same name under {new!r}, and "
            f"{result.unreadable} cannot be read: these were left as they are"
        )
        raise failure(message, EX_CONFLICT)


def _refuse_running_beat(console: Console, client: Any, prefix: str) -> None:
    """End the command when a beat runs on a prefix. Three round trips."""
    store, conf = Store(client, Keys.under(prefix)), ensure_conf(console.app)
    lock_key = conf.lock_key or f"{conf.key_prefix}:lock"
    holder = store.lock_holder(prefix + lock_key.removeprefix(conf.key_prefix))
    tokens = [holder] if holder else [beat.token for beat in store.beats(SEEN_WITHIN)]
    if tokens:
        beat = BeatInfo.read(tokens[0])
        who = beat.token if beat.pid is None else f"process {beat.pid} on {beat.host}"
        message = (
            f"A beat runs on {prefix!r}: {who}. Stop it first; one that was killed holds its lock "
            "for a while, then --force goes on"
        )
        raise failure(message, EX_CONFLICT)
