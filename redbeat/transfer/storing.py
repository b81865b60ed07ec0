"""Stores imported entries, with the history that came along, as changes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from json.encoder import encode_basestring_ascii as quoted
from typing import NamedTuple

from redbeat.codec.stored import object_in
from redbeat.entries.changes import NOW, apply, editing, state_of
from redbeat.entries.pauses import Pause, without_pause
from redbeat.entries.saving import TOLERANCE
from redbeat.entries.state import State, with_runtime
from redbeat.errors import InvalidEntryError
from redbeat.storage import commands, rows, words
from redbeat.storage.reading import reading
from redbeat.storage.store import Store


class Writing(NamedTuple):
    """An entry to write.

    - ``key``: the key of the entry.
    - ``definition``, ``policy``, ``meta`` and ``runtime``: the JSON to store.
    - ``seen``: the meta that the caller expects in Redis, or None if the caller accepts any meta.
    - ``score``: when the entry is due next, in UNIX seconds, or None for the time of Redis.
    - ``made_up``: the last run of a new or restarted entry, if the last run is only a default from
      the clock of the caller, else None.
    - ``history``: the lines of the run history, or "" to keep the stored lines.
    - ``identity``: the identity of a new entry. A caller that repeats a write passes the same
      identity.
    - ``static_name``: the name of a static entry, "" for a dynamic entry.
    """

    key: str
    definition: str
    policy: str
    meta: str = ""
    runtime: str = ""
    seen: str | None = ""
    score: float | None = None
    made_up: datetime | None = None
    history: str = ""
    identity: str = ""
    static_name: str = ""


def save_imported(store: Store, writings: Sequence[Writing]) -> list[Writing]:
    """Store entries as a file has them; return those that were left alone. Two round trips.

    These must be saved as programs save them: an entry was created or has run since the import was
    checked, or its last run is by a clock that is ahead of Redis. Raises :exc:`InvalidEntryError`
    for a key that is not a hash, after the others were stored.
    """
    reply = apply(store, reading([writing.key for writing in writings]))
    left, changed, changes = list[Writing](), list[Writing](), list[rows.Change]()
    for writing, found in zip(writings, reply.answers, strict=True):
        row, made_up = found.row or rows.Row(writing.key), writing.made_up
        has_run = row.definition is not None and writing.seen not in (None, row.meta or "")
        if has_run or (made_up is not None and made_up.timestamp() > reply.now + TOLERANCE):
            left.append(writing)
        else:
            changed.append(writing)
            changes.append(_change_of(writing, row))
    answers = apply(store, changes).answers if changes else ()
    for writing, answer in zip(changed, answers, strict=True):
        if answer.word == words.REFUSED or (answer.row is not None and answer.row.problem):
            raise InvalidEntryError("name", commands.not_an_entry(writing.key))
        if answer.word != words.DONE:
            left.append(writing)
    return left


def _change_of(writing: Writing, row: rows.Row) -> rows.Change:
    """Return the change that stores an imported entry in place of what there is."""
    state, texts = _state_of(writing, row), (writing.definition, without_pause(writing.policy))
    change = editing(row, state, texts, writing.meta or None)
    if writing.history:
        lines = ",\n".join(map(quoted, writing.history.splitlines()))
        change.set[words.HISTORY] = f"[{lines}]"
        change.unset = tuple(field for field in change.unset if field != words.HISTORY)
    change.add = NOW if writing.score is None or state.triggers else writing.score
    if state.hold is not None:
        change.add = state.hold.until
    return change


def _state_of(writing: Writing, row: rows.Row) -> State:
    state = State(identity=writing.identity) if row.definition is None else state_of(row)
    if writing.meta:
        state = with_runtime(state, writing.runtime)
        state.due, state.hold = None, None
    pause = Pause.read(writing.policy)
    if object_in(writing.definition, words.DEFINITION).get("enabled", True):
        state.pause = None
    elif pause is not None:
        state.pause = pause
    return state
