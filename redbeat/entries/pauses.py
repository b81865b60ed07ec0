"""Pauses and resumes entries by changing their stored definition and policy."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from celery import Celery

from redbeat.calendar.zones import UTC
from redbeat.codec.stored import bytes_of, moment_in, object_in, string_in
from redbeat.decoder import decode
from redbeat.errors import ConflictError, DecodeError, InvalidEntryError
from redbeat.storage.reading import batches
from redbeat.storage.records import CONFLICT, SAVED, Writing
from redbeat.storage.store import Store
from redbeat.storage.wire import Row

from .decide import DISABLED
from .history import Texts, new_identity

if TYPE_CHECKING:
    from redbeat.entry import RedBeatSchedulerEntry

#: The name of the policy field that contains the pause.
FIELD: Final = "pause"

#: Maximum number of characters in a note, and in the name of an operator.
LONGEST: Final = 2000


class Pause(NamedTuple):
    """An operator's pause of an entry.

    Attributes:
        note: the reason for the pause, None without a reason.
        since: when the entry was paused, ISO 8601 in UTC; "" if unknown.
        of: the digest of definition and policy before the pause.
        by: the name of the operator, None if unknown.
    """

    note: str | None
    since: str
    of: str
    by: str | None = None

    @classmethod
    def read(cls, policy: str) -> Pause | None:
        """Return the pause in a stored policy, None without a pause; raises :exc:`DecodeError`."""
        if f'"{FIELD}"' not in policy:
            return None
        fields = decode(policy, "policy").get(FIELD)
        if fields is None:
            return None
        if not isinstance(fields, dict):
            raise DecodeError(f"policy.{FIELD}", f"must be an object, not {fields!r:.60}")
        note, by, of = (string_in(fields.get(name), LONGEST) for name in ("note", "by", "of"))
        since = moment_in(fields.get("since"))
        return cls(note or None, _iso(since) if since else "", of, by or None)

    @classmethod
    def of_entry(cls, entry: Any) -> Pause | None:
        """Return the pause of a loaded entry, None if the entry is not paused."""
        return None if entry is None or entry.enabled else entry.saved_state.pause

    def field(self) -> dict[str, Any]:
        """Return the pause as a field of the stored policy."""
        fields = self._asdict()
        if self.by is None:
            del fields["by"]
        return {FIELD: fields}


def paused(
    definition: str, policy: str, note: str | None, now: datetime, by: str | None = None
) -> tuple[str, str]:
    """Return the stored definition and policy of an entry, with a pause added.

    If the entry is paused already, the new pause contains the digest of the earlier pause.
    """
    earlier = Pause.read(policy)
    pause = Pause(
        None if note is None else string_in(str(note), LONGEST),
        _iso(now),
        digest(definition, policy) if earlier is None else earlier.of,
        by,
    )
    texts = {**object_in(policy, "policy"), **pause.field()}
    return _with_enabled(definition, False), json.dumps(texts)


def resumed(definition: str, policy: str) -> tuple[str, str]:
    """Return the stored definition and policy of an entry, with the pause removed."""
    texts = object_in(policy, "policy")
    if FIELD in texts:
        texts.pop(FIELD)
        policy = json.dumps(texts) if texts else ""
    return _with_enabled(definition, True), policy


def _iso(instant: datetime) -> str:
    return instant.astimezone(UTC).isoformat(timespec="seconds")


def digest(definition: str, policy: str) -> str:
    """Return the SHA-1 digest of definition and policy; ``sync.lua`` computes the same digest."""
    whole = f"{definition}\n{policy}" if policy else definition
    return hashlib.sha1(bytes_of(whole), usedforsecurity=False).hexdigest()


def _with_enabled(definition: str, enabled: bool) -> str:
    return json.dumps({**object_in(definition, "definition"), "enabled": enabled})


#: Maximum number of attempts to change an entry that other programs change during each attempt.
ATTEMPTS = 5


def pause_entries(
    store: Store, keys: Iterable[str], note: str | None, by: str | None = None
) -> dict[str, Texts]:
    """Pause entries, and return the new definition and policy of each entry by key.

    Missing and unreadable entries are skipped. Raises :exc:`ConflictError` if other programs change
    an entry during each attempt. Takes two round trips per 500 keys.
    """
    now = datetime.now(timezone.utc)

    def change(row: Row) -> Writing:
        texts = paused(row.definition or "", row.policy, note, now, by)
        return Writing(row.key, *texts, score=DISABLED)

    return _change(store, keys, change)


def resume_entries(
    store: Store, keys: Iterable[str], app: Celery, entry_class: type[RedBeatSchedulerEntry]
) -> dict[str, Texts]:
    """Resume entries, and return the new definition and policy of each entry by key.

    Missing and unreadable entries are skipped. Raises :exc:`ConflictError` if other programs change
    an entry during each attempt. Takes two round trips per 500 keys.
    """

    def change(row: Row) -> Writing:
        texts = resumed(row.definition or "", row.policy)
        try:
            definition, policy = texts
            loader: Any = entry_class
            entry = loader.from_texts(app, definition, row.meta, policy, row.runtime)
            entry.warn_if_finished()
            return Writing(row.key, *texts, score=entry.score_to_store())
        except (DecodeError, InvalidEntryError):  # a beat reports the error of an invalid entry
            return Writing(row.key, *texts)

    return _change(store, keys, change)


def _change(
    store: Store, keys: Iterable[str], change: Callable[[Row], Writing]
) -> dict[str, Texts]:
    done: dict[str, Texts] = {}
    for batch in batches(keys):
        left: list[str] = list(dict.fromkeys(batch))
        for _ in range(ATTEMPTS):
            left = _change_once(store, left, change, done)
            if not left:
                break
        else:
            raise ConflictError(store.keys.name_of(left[0]))
    return done


def _change_once(
    store: Store, keys: list[str], change: Callable[[Row], Writing], done: dict[str, Texts]
) -> list[str]:
    """Change the readable entries, and return the keys of the entries that must be retried.

    An entry must be retried if another program changed the entry during the call.
    """
    writings = []
    for row in store.read(keys).rows:
        if row.problem or row.definition is None:
            continue
        try:
            writing = change(row)
        except (ValueError, TypeError):  # the definition or the policy is not a JSON object
            continue
        believed = (row.definition, row.policy)
        if (writing.definition, writing.policy) == believed and row.score is not None:
            done[row.key] = believed
        else:
            identity = "" if row.static else new_identity()
            writings.append(writing._replace(seen=None, believed=believed, identity=identity))
    results = store.save_all(writings) if writings else []
    changed = []
    for writing, (code, *_) in zip(writings, results, strict=True):
        if code == SAVED:
            done[writing.key] = (writing.definition, writing.policy)
        elif code == CONFLICT:
            changed.append(writing.key)
    return changed
