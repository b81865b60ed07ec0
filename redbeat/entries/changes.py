"""Reads what is stored about entries, and makes the changes that programs and files ask for."""

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

#: How often a change is tried of an entry that others change at the same time.
ATTEMPTS: Final = 20

#: A score that stands for the time of Redis at the change.
NOW: Final = 0.0


def apply(store: Store, changes: Sequence[Change], look: Look | None = None) -> Reply:
    """Apply changes, without being a beat. One round trip."""
    return store.turn(Request("program", None, changes, look))


def read(store: Store, key: str) -> Row | None:
    """Return the row of an entry, None if there is none. One round trip."""
    (row,) = read_rows(store, [key])
    return row if row.definition is not None or row.problem else None


def texts_in(row: Row) -> Texts:
    """Return the definition and policy of a row, "" for what is missing."""
    return row.definition or "", row.policy or ""


def with_enabled(definition: str, value: bool) -> str:
    """Return a definition with the entry enabled or not; raises :exc:`DecodeError`."""
    return json.dumps({**object_in(definition, words.DEFINITION), "enabled": value})


def digest(definition: str, policy: str) -> str:
    """Return the SHA-1 digest of definition and policy."""
    return _sha1(f"{definition}\n{policy}" if policy else definition)


def _sha1(text: str) -> str:
    return hashlib.sha1(bytes_of(text), usedforsecurity=False).hexdigest()


def state_of(row: Row) -> State:
    """Return what beats keep about an entry; one without a state gets an identity."""
    state = State.read(row.state, row.meta)
    if row.state is None:
        # Computed from the texts, so that the next beat gives the same identity if Redis loses its
        # last writes.
        state.identity = _sha1(f"{row.definition}\n{row.meta or ''}")[:8]
    return state


def keep_due(row: Row, state: State) -> bool:
    """Keep the nominal time of an entry that never ran, whose score is moved; return whether."""
    due = seconds_in(row.score)
    if row.meta is not None or state.due is not None or due is None or due < 1:
        return False
    state.due = due
    return True


def end_pause(state: State, now: float) -> None:
    """Let an entry go on, in place; failures before a resume do not count."""
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
    """Return the change that stores a state, and other fields, if the row is as it was read.

    ``hold`` says whether the change makes the hold in the state. ``more`` are attributes of the
    :class:`Change`.
    """
    mark = new_mark()
    state.sign(mark, hold=hold)
    stored = {**(fields or {}), words.STATE: state.text()}
    return Change(row.key, mark, digest_of(row), set=stored, **more)


def editing(row: Row, state: State, texts: Texts | None = None, meta: str | None = None) -> Change:
    """Return the change that edits an entry, without a score; None keeps the stored texts.

    An edit ends a quarantine, and the attempts to send a run that failed. What a deleted entry has
    left is not the new one's.
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
    """Return the writes that take an entry out of the quarantine and off the failing ones."""
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
    """Return a row as it is after a change, without score and inbox."""
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
    """Change entries, and return what is stored then, by key.

    ``change_of`` returns the change of a row at a time of Redis, None if nothing is to be done. An
    entry for which it raises an error of ``skip`` is left out. So is one that does not exist,
    unless ``new`` is true.
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
    """Make changes, and put what is stored then into ``done``.

    Returns the rows that differ from those that were changed, and the time of Redis.
    """
    reply, left = apply(store, [change for _, change in made]), list[Row]()
    for (row, change), answer in zip(made, reply.answers, strict=True):
        if answer.word == words.DONE:
            done[row.key] = after(row, change)
        else:
            del done[row.key]
            left.append(answer.row or Row(row.key, problem=answer.why))
    return left, reply.now
