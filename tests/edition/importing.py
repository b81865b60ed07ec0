"""Stores imported entries, with the history that came along, as changes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from json.encoder import encode_basestring_ascii as quoted

from redbeat.codec.stored import object_in
from redbeat.entries.decide import Trigger
from redbeat.entries.history import Change as TimingChange
from redbeat.entries.history import History
from redbeat.entries.pauses import FIELD as PAUSE
from redbeat.entries.pauses import Pause as EntryPause
from redbeat.errors import InvalidEntryError
from redbeat.storage.reading import not_an_entry
from redbeat.storage.records import CLOCK_AHEAD, HISTORY_DIFFERS, SAVED, Saved, Writing
from tests.edition.beat.load import state_of
from tests.edition.saving import NOW, TOLERANCE, apply, out_of_trouble
from tests.edition.state import Pause, State, digest_of_meta
from tests.edition.storage.portions import reading
from tests.edition.storage.rows import Change, Row, digest_of, new_mark
from tests.edition.storage.store import Store
from tests.edition.words import (
    CALENDAR_USERS,
    DEFINITION,
    DONE,
    EXPECTED,
    HISTORY,
    INBOX,
    META,
    POLICY,
    REFUSED,
    RESULTS,
    STATE,
    WAITS,
)


def save_imported(store: Store, writings: Sequence[Writing]) -> list[Saved]:
    """Store entries as a file has them, and return what became of each. Two round trips.

    An entry that must be saved as programs save it is left alone: it was created or has run since
    the import was checked, or its last run is by a clock that is ahead of Redis. Raises
    :exc:`InvalidEntryError` for a key that is not a hash, after the others were stored.
    """
    reply = apply(store, reading([writing.key for writing in writings]))
    results, changes = list[Saved](), dict[int, Change]()
    for number, (writing, found) in enumerate(zip(writings, reply.answers, strict=True)):
        row, made_up = found.row or Row(writing.key), writing.made_up
        results.append(Saved(SAVED))
        if row.definition is not None and writing.seen not in (None, row.meta or ""):
            results[number] = Saved(HISTORY_DIFFERS)
        elif made_up is not None and made_up.timestamp() > reply.now + TOLERANCE:
            results[number] = Saved(CLOCK_AHEAD)
        else:
            changes[number] = _change_of(writing, row)
    answers = apply(store, list(changes.values())).answers if changes else ()
    for number, answer in zip(changes, answers, strict=True):
        if answer.word == REFUSED or (answer.row is not None and answer.row.problem):
            raise InvalidEntryError("name", not_an_entry(writings[number].key))
        if answer.word != DONE:
            results[number] = Saved(HISTORY_DIFFERS)
    return results


def _change_of(writing: Writing, row: Row) -> Change:
    """Return the change that stores an imported entry in place of what there is."""
    state, key = _state_of(writing, row), row.key
    policy, mark = _without_pause(writing.policy), new_mark()
    state.sign(mark)
    change = Change(key, mark, digest_of(row), index=out_of_trouble(key))
    change.set = {DEFINITION: writing.definition, STATE: state.text()}
    if policy:
        change.set[POLICY] = policy
    else:
        change.unset = (POLICY,)
    if row.definition is None:
        change.unset += (INBOX, HISTORY, RESULTS, WAITS)
    if writing.meta:
        change.set[META] = writing.meta
    if writing.history:
        lines = ",\n".join(map(quoted, writing.history.splitlines()))
        change.set[HISTORY] = f"[{lines}]"
        change.unset = tuple(field for field in change.unset if field != HISTORY)
    change.add = _score_of(writing, state)
    if '"exclude"' in policy:
        change.index.append(["SADD", CALENDAR_USERS, key])
    if '"expect_within"' in policy:
        change.index.append(["ZADD", EXPECTED, "0", key])
    return change


def _score_of(writing: Writing, state: State) -> float:
    if state.hold is not None:
        return state.hold.until
    if writing.score is None or any(isinstance(one, Trigger) for one in state.waiting):
        return NOW
    return writing.score


def _state_of(writing: Writing, row: Row) -> State:
    state = State(identity=writing.identity) if row.definition is None else state_of(row)
    state.failing, state.quarantine = None, None
    if writing.meta:
        state.meta, state.at = digest_of_meta(writing.meta), None
        state.due, state.hold = None, None
        scheduled_at = History.read(writing.meta, writing.runtime).scheduled_at
        if scheduled_at is not None:
            state.at = scheduled_at.timestamp()
        state.change = TimingChange.read(writing.runtime)
    enabled = object_in(writing.definition, DEFINITION).get("enabled", True)
    pause = EntryPause.read(writing.policy)
    if enabled:
        state.pause = None
    elif pause is not None:
        since = datetime.fromisoformat(pause.since).timestamp() if pause.since else 0.0
        state.pause = Pause(since, pause.note or "", pause.by or "")
    return state


def _without_pause(policy: str) -> str:
    fields = object_in(policy, POLICY)
    if fields.pop(PAUSE, None) is None:
        return policy
    return json.dumps(fields) if fields else ""
