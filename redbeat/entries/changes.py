"""Reading what is stored about entries, and the changes that programs and files ask for."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from redbeat.codec.stored import bytes_of, object_in, seconds_in
from redbeat.entries.history import Texts
from redbeat.entries.state import NO_RESULTS, State, digest_of_meta
from redbeat.errors import ConflictError
from redbeat.storage import words
from redbeat.storage.reading import batches, read_rows
from redbeat.storage.rows import Change, Look, Reply, Request, Row, digest_of, new_mark
from redbeat.storage.store import Store

#: How often to try when others change the same entry at the same time.
ATTEMPTS: Final = 20

#: As a score, this stands for Redis's time at the change.
NOW: Final = 0.0


def apply(store: Store, changes: Sequence[Change], look: Look | None = None) -> Reply:
    """For programs that are no beat. One round trip."""
    return store.turn(Request("program", None, changes, look))


def read(store: Store, key: str) -> Row | None:
    """One round trip."""
    (row,) = read_rows(store, [key])
    return row if row.definition is not None or row.problem else None


def texts_in(row: Row) -> Texts:
    return row.definition or "", row.policy or ""


def with_enabled(definition: str, value: bool) -> str:
    return json.dumps({**object_in(definition, words.DEFINITION), "enabled": value})


def digest(definition: str, policy: str) -> str:
    whole = f"{definition}\n{policy}" if policy else definition
    return hashlib.sha1(bytes_of(whole), usedforsecurity=False).hexdigest()


def keep_due(row: Row, state: State) -> bool:
    """Keep the nominal time of an entry that never ran before its score is moved."""
    due = seconds_in(row.score)
    if row.meta is not None or state.due is not None or due is None or due < 1:
        return False
    state.due = due
    return True


def end_pause(state: State, now: float) -> None:
    """Failures from before a resume don't count."""
    state.pause = None
    if state.results != NO_RESULTS:
        state.results = state.results._replace(failures=0, since=now)


def change_of(
    row: Row,
    state: State,
    fields: Mapping[str, str] | None = None,
    *,
    hold: bool = False,
    **more: Any,
) -> Change:
    """Store a state, and other fields, unless the row has changed since it was read.

    ``hold`` says whether the change makes the hold in the state. ``more`` are attributes of the
    :class:`Change`.
    """
    mark = new_mark()
    state.sign(mark, hold=hold)
    stored = {**(fields or {}), words.STATE: state.text()}
    return Change(row.key, mark, digest_of(row), set=stored, **more)


def editing(row: Row, state: State, texts: Texts | None = None, meta: str | None = None) -> Change:
    """Edit an entry, leaving its score alone; None keeps the stored definition or meta.

    An edit ends a quarantine, and the attempts to send a run that failed. A new entry doesn't
    inherit what a deleted one has left.
    """
    state.failing, state.quarantine = None, None
    if meta is not None:
        state.meta = digest_of_meta(meta)
    change, key = change_of(row, state), row.key
    change.index = out_of_trouble(key)
    if meta is not None:
        change.set[words.META] = meta
    if row.definition is None:
        change.unset = (words.INBOX, words.HISTORY, words.RESULTS, words.WAITS)
    if texts is not None:
        _set_texts(change, texts, row.policy or "")
    return change


def out_of_trouble(key: str) -> list[list[str]]:
    return [["HDEL", words.QUARANTINE, key], ["ZREM", words.FAILING, key]]


def _set_texts(change: Change, texts: Texts, before: str) -> None:
    definition, policy = texts
    change.set[words.DEFINITION] = definition
    if policy:
        change.set[words.POLICY] = policy
    else:
        change.unset += (words.POLICY,)
    if '"exclude"' in policy:
        change.index.append(["SADD", words.CALENDAR_USERS, change.key])
    if '"expect_within"' in policy:
        change.index.append(["ZADD", words.EXPECTED, "0", change.key])
    elif '"expect_within"' in before:
        change.index.append(["ZREM", words.EXPECTED, change.key])


def after(row: Row, change: Change) -> Row:
    """Return the row without score and inbox."""
    before = {
        words.DEFINITION: row.definition,
        words.META: row.meta,
        words.POLICY: row.policy,
        words.STATE: row.state,
    }
    texts = {**before, **dict.fromkeys(change.unset), **change.set}
    definition, meta, policy, state = map(texts.get, before)
    return Row(row.key, "", definition, meta, policy, state)


def change_all(
    store: Store,
    keys: Iterable[str],
    change_of: Callable[[Row, float], Change | None],
    skip: tuple[type[Exception], ...] = (),
    new: bool = False,
) -> dict[str, Row]:
    """Change entries, and return what is stored afterwards, by key.

    ``change_of`` gets a row and Redis's time, and returns None if there is nothing to do. An entry
    for which it raises one of ``skip`` is left out. So is one that does not exist, unless ``new``.
    """
    done: dict[str, Row] = {}
    for batch in batches(dict.fromkeys(keys)):
        page = store.read(batch)
        left, now = page.rows, page.now
        for attempt in range(ATTEMPTS + 1):
            left = [row for row in left if new or row.definition is not None]
            if left and attempt == ATTEMPTS:
                raise ConflictError(store.keys.name_of(left[0].key))
            made: list[tuple[Row, Change]] = []
            for row in left:
                with suppress(*skip):
                    change = change_of(row, now)
                    done[row.key] = row
                    if change is not None:
                        made.append((row, change))
            left, now = _try(store, made, done) if made else ([], now)
    return done


def _try(
    store: Store, made: Sequence[tuple[Row, Change]], done: dict[str, Row]
) -> tuple[list[Row], float]:
    """Return the rows that others have changed in between, and Redis's time."""
    reply, left = apply(store, [change for _, change in made]), list[Row]()
    for (row, change), answer in zip(made, reply.answers, strict=True):
        if answer.word == words.DONE:
            done[row.key] = after(row, change)
        else:
            del done[row.key]
            left.append(answer.row or Row(row.key, problem=answer.why))
    return left, reply.now
