"""Pause, resume, release, delete, pop and forget entries, as changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from celery import Celery
from redis.exceptions import ResponseError

from redbeat.calendar.zones import from_timestamp
from redbeat.codec.stored import string_in
from redbeat.config import key_aside
from redbeat.entries import changes
from redbeat.entries.decide import DISABLED
from redbeat.entries.history import Texts
from redbeat.entries.pauses import LONGEST, Pause, resumed, with_enabled
from redbeat.entries.saving import entry_of, score_of
from redbeat.entries.state import NO_RESULTS, read_inbox
from redbeat.errors import ConflictError, DecodeError, InvalidEntryError
from redbeat.storage import words
from redbeat.storage.commands import batches, not_an_entry
from redbeat.storage.reading import read_rows, reading
from redbeat.storage.rows import Change, Reply, Row, digest_of, new_mark
from redbeat.storage.store import Store

#: The side key in which :func:`pop` notes for a minute what it deleted.
POPPED, REMEMBERED = "popped:", "60"

#: What a definition or policy raises that is not a JSON object.
UNREADABLE = (ValueError, TypeError)

# -- pause, resume and release ---------------------------------------------------------------------


def pause(store: Store, keys: Iterable[str], note: str | None, by: str | None) -> dict[str, Row]:
    """Pause entries, and return what is stored then, by key.

    Missing and unreadable entries are skipped. An entry that is not in the schedule is put there,
    disabled. Raises :exc:`ConflictError` if an entry is changed
    during each attempt. Takes two round trips per 500 keys, and one more for each attempt.
    """
    text = "" if note is None else string_in(str(note), LONGEST)

    def paused(row: Row, now: float) -> Change:
        definition, policy = resumed(*changes.texts_in(row))
        state = changes.state_of(row)
        changes.keep_due(row, state)
        state.pause = Pause(float(int(now)), text, by or "")  # as in files
        change = changes.editing(row, state, (with_enabled(definition, False), policy))
        change.add = state.hold.until if state.hold else changes.NOW if state.triggers else DISABLED
        return change

    return change_all(store, keys, paused, skip=UNREADABLE)


def resume(store: Store, keys: Iterable[str], app: Celery, entry_class: Any) -> dict[str, Row]:
    """Enable entries, and return what is stored then, by key; see :func:`pause`."""

    def enabled(row: Row, now: float) -> Change | None:
        texts, state = resumed(*changes.texts_in(row)), changes.state_of(row)
        had = (state.pause, state.results.failures, changes.texts_in(row))
        if row.score and had == (None, 0, texts):
            return None
        state.pause = None
        if state.results != NO_RESULTS:
            state.results = state.results._replace(failures=0, since=now)
        change = changes.editing(row, state, texts)
        try:
            entry = entry_of(changes.after(row, change), app, entry_class)
            entry.warn_if_finished()
            change.add = score_of(entry, state, from_timestamp(now))
        except (DecodeError, InvalidEntryError):  # a beat reports the error of an invalid entry
            change.add = changes.NOW
        return change

    return change_all(store, keys, enabled, skip=UNREADABLE)


def make_due(store: Store, keys: Iterable[str]) -> dict[str, Row]:
    """Take entries out of the quarantine, and let a beat look at them now; see :func:`pause`.

    What has never run keeps the time of its first run.
    """

    def due(row: Row, _now: float) -> Change:
        state = changes.state_of(row)
        changes.keep_due(row, state)
        change = changes.editing(row, state)
        change.score = changes.NOW
        return change

    return change_all(store, keys, due)


def pause_entry(store: Store, entry: Any, note: str | None = None, by: str | None = None) -> None:
    """Pause an entry; see :meth:`redbeat.RedBeatSchedulerEntry.pause`. Two round trips."""
    _take_over(entry, pause(store, [entry.writable_key()], note, by))


def resume_entry(store: Store, entry: Any) -> None:
    """Enable an entry; see :meth:`redbeat.RedBeatSchedulerEntry.resume`. Two round trips."""
    _take_over(entry, resume(store, [entry.writable_key()], entry.app, type(entry)))


def _take_over(entry: Any, changed: dict[str, Row]) -> None:
    """Let the entry know what a pause has stored.

    If another program had edited the entry before, a later ``save(if_unchanged=True)`` conflicts.
    """
    row = changed.get(entry.key)
    if row is None:
        raise KeyError(entry.name)
    known, state, texts = entry.saved_state, changes.state_of(row), changes.texts_in(row)
    if known.texts[0] and resumed(*known.texts) == resumed(*texts):
        known = known._replace(texts=texts)
    entry.saved_state = known._replace(pause=state.pause)
    entry.enabled = state.pause is None


def change_all(
    store: Store,
    keys: Iterable[str],
    change_of: Callable[[Row, float], Change | None],
    skip: tuple[type[Exception], ...] = (),
) -> dict[str, Row]:
    """Change entries, and return what is stored then, by key.

    ``change_of`` returns the change of a row at a time of Redis, None if nothing is to be done. An
    entry for which it raises an error of ``skip`` is left out, like one that does not exist.
    """
    done: dict[str, Row] = {}
    for batch in batches(dict.fromkeys(keys)):
        done.update((row.key, row) for row in _changed(store, batch, change_of, skip))
    return done


def _changed(
    store: Store,
    keys: Sequence[str],
    change_of: Callable[[Row, float], Change | None],
    skip: tuple[type[Exception], ...],
) -> Iterator[Row]:
    reply = changes.apply(store, reading(keys))
    for attempt in range(changes.ATTEMPTS + 1):
        rows, made = list[Row](), list[Change]()
        for row in _rows_in(reply):
            if attempt == changes.ATTEMPTS:
                raise ConflictError(store.keys.name_of(row.key))
            with suppress(*skip):
                change = change_of(row, reply.now)
                if change is None:
                    yield row
                else:
                    rows.append(row)
                    made.append(change)
        if not made:
            return
        reply = changes.apply(store, made)
        for row, change, answer in zip(rows, made, reply.answers, strict=True):
            if answer.word == words.DONE:
                yield changes.after(row, change)


def _rows_in(reply: Reply) -> list[Row]:
    """Return the rows of the entries that differ from what was expected."""
    rows = [answer.row for answer in reply.answers if answer.row is not None]
    return [row for row in rows if row.definition is not None]


# -- delete ----------------------------------------------------------------------------------------


def delete(store: Store, keys: Iterable[str]) -> int:
    """Delete entries and all that is stored with them; return how many existed.

    One round trip per 500 keys.
    """
    removed = 0
    for batch in batches(keys):
        answers = changes.apply(store, [deletion(key) for key in batch]).answers
        for answer in answers:
            if answer.word == words.REFUSED:
                raise InvalidEntryError("name", answer.why)
        removed += sum(answer.word == words.DONE for answer in answers)
    return removed


def delete_unchanged(store: Store, key: str, texts: Texts) -> bool:
    """Delete an entry if it says what ``texts`` do; return False, and do nothing, if it does not.

    An entry that does not exist is deleted. Takes two round trips, and one more for each run that
    a beat records during the call.
    """

    def check(row: Row) -> None:
        if changes.texts_in(row) != texts:
            raise ConflictError(key)

    try:
        pop(store, key, check)
    except (ConflictError, DecodeError):
        return False
    return True


def pop(store: Store, key: str, check: Callable[[Row], object] = lambda row: row) -> Row | None:
    """Delete an entry, and return what was stored; None if another caller was faster, or none is.

    Raises what ``check`` raises for what is stored, and then deletes nothing. Takes two round
    trips, and two more for each change of the entry in between. A note stays for a minute: if the
    reply is lost, the repeated call is told by it that the entry was there.
    """
    row, note = next(iter(changes.read(store, [key]).values()), None), POPPED + new_mark()
    while row is not None:
        if row.problem:
            raise DecodeError("definition", not_an_entry(key))
        check(row)
        change = deletion(key, row)
        change.index.append(["SET", note, "1", "EX", REMEMBERED])
        (answer,) = changes.apply(store, [change]).answers
        if answer.word == words.DONE or _is_noted(store.part_of(key), note):
            return row
        row = answer.row
    return None


def _is_noted(store: Store, note: str) -> bool:
    try:
        return bool(store.client.get(key_aside(store.keys.prefix, note)))
    except ResponseError:  # no right to a key aside of the prefix
        return False


def forget(store: Store, members: Iterable[str]) -> list[str]:
    """Take members without an entry out of the schedule, and return them.

    One that is an entry by now, or another key, stays. Two round trips per 500.
    """
    gone: list[str] = []
    for batch in batches(members):
        rows = dict(zip(batch, read_rows(store, batch), strict=True))
        made = [
            deletion(key, row)
            for key, row in rows.items()
            if row.definition is None and not row.problem
        ]
        answers = changes.apply(store, made).answers if made else ()
        pairs = zip(made, answers, strict=True)
        gone += [change.key for change, answer in pairs if answer.word == words.DONE]
    return gone


def deletion(key: str, row: Row | None = None) -> Change:
    """Return the change that deletes an entry, if it is as in ``row``."""
    index = [
        *changes.out_of_trouble(key),
        ["ZREM", words.EXPECTED, key],
        ["SREM", words.CALENDAR_USERS, key],
    ]
    change = Change(key, delete=True, index=index)
    if row is not None:
        change.expect = digest_of(row)
        said = read_inbox(row.inbox)
        change.take = said[-1].line if said else ""
    return change
