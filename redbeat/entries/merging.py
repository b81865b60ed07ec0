"""What becomes of a run history when an entry is saved: pure functions, no Redis, no clock."""

from __future__ import annotations

import json
from collections.abc import Collection
from datetime import datetime
from typing import Any, Final

from redbeat.decoder import encode
from redbeat.errors import DecodeError
from redbeat.schedules import RuleSchedule, zone_extension

from .definition import decode_definition, decode_policy
from .due import counts_from
from .history import History
from .occurrences import aware, same_instant
from .policy import Policy

__all__ = ("after_saved_anew", "armed_again", "merged_history")

#: Definition and policy, as stored.
Texts = tuple[str, str]

#: The fields of a policy that say when, and how often, an entry runs.
FIELDS: Final = ("timezone", "start_time", "end_time", "max_runs")

#: What decides when an entry runs, in a form that can be compared; its schedule, None where the
#: texts cannot be read; its ``max_runs``.
Terms = tuple[Any, Any, "int | None"]


def merged_history(claimed_meta: str, stored_meta: str, recorded: History) -> History:
    """Return the history to write after a run during which an application wrote another one.

    ``recorded`` is the history after the run, as it is without the application. ``claimed_meta`` is
    what was stored when the run began and ``stored_meta`` what is stored now, which counts as
    written after the run: what it changed stands. A stored text that cannot be read is replaced.
    """
    if stored_meta == claimed_meta:
        return recorded
    try:
        stored = History.read(stored_meta)
    except DecodeError:
        return recorded
    try:
        claimed = History.read(claimed_meta)
    except DecodeError:
        return stored
    last_run_at, count, scheduled_at = recorded
    if not same_instant(stored.last_run_at, claimed.last_run_at):
        last_run_at, scheduled_at = stored.last_run_at, None
    if stored.total_run_count != claimed.total_run_count:
        count = stored.total_run_count
    return History(last_run_at, count, scheduled_at)


def armed_again(
    old_definition: str,
    old_policy: str,
    new_definition: str,
    new_policy: str,
    foreign: Collection[str] = (),
) -> bool:
    """Return whether an entry with the new texts has another schedule, zone, window or limit.

    How the same value is written does not matter. ``foreign`` are fields of a policy that the class
    of the entry uses for something else.
    """
    old, new = (old_definition, old_policy), (new_definition, new_policy)
    if old == new:
        return False
    old_timing, _, old_limit = _terms(*old, foreign)
    new_timing, _, new_limit = _terms(*new, foreign)
    return bool(old_timing != new_timing) or old_limit != new_limit


def after_saved_anew(
    history: History,
    old: Texts,
    new: Texts,
    now: datetime,
    rewritten: bool = False,
    foreign: Collection[str] = (),
) -> History:
    """Return the history with which an entry of the ``old`` texts goes on that is saved as ``new``.

    Where its ``max_runs`` are used up and its schedule, zone or window is another one, it counts
    its runs from 0 and, like an entry made ``now``, UTC, from the present; a rule from its last run
    on if that is later. With ``rewritten`` an application wrote ``last_run_at``: it counts its runs
    from 0 too, and goes on from there. Otherwise ``history`` is returned as it is, also for a
    changed limit: what that leaves is run.
    """
    if (old == new and not rewritten) or '"max_runs"' not in "".join(new):
        return history
    new_timing, schedule, limit = _terms(*new, foreign)
    if limit is None:
        return history
    old_timing, _, old_limit = (new_timing, None, limit) if old == new else _terms(*old, foreign)
    count = history.total_run_count
    if count < limit and (old_limit is None or count < old_limit):
        return history
    if rewritten:
        return history._replace(total_run_count=0)
    if old_timing == new_timing:
        return history
    begins, last = counts_from(schedule, now), history.scheduled_at or history.last_run_at
    if last is not None and isinstance(schedule, RuleSchedule):
        begins = max(begins, aware(last))
    return History(begins, 0)


def _terms(definition: str, policy: str, foreign: Collection[str]) -> Terms:
    try:
        fields = decode_policy(policy, decode_definition(definition), foreign)
        ours = [name for name in FIELDS if name not in foreign or f'"{name}"' in policy]
        given = Policy.of({name: fields.get(name) for name in ours})
        schedule = fields["schedule"]
        window = (given.timezone, given.start_time, given.end_time)
        return (encode(schedule), zone_extension(schedule), window), schedule, given.max_runs
    except Exception:  # also what a schedule type of the user's own raises
        return (_plain(definition), _plain(policy)), None, None


def _plain(text: str) -> Any:
    """Return what of a text that cannot be read decides about times, the text if it is no JSON."""
    try:
        found = json.loads(text)
        return [found.get(name) for name in ("schedule", *FIELDS)]
    except (ValueError, AttributeError, RecursionError):
        return text
