"""An entry of the schedule: what the user stores, and what happened to it so far."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, TypeVar

from celery.app import app_or_default
from celery.beat import ScheduleEntry
from celery.schedules import schedstate

from .client import get_redis
from .config import ensure_conf
from .decoder import to_timestamp
from .definition import decode_definition, decode_policy, encode_definition, encode_policy
from .errors import DecodeError, InvalidEntryError
from .history import History, decode_meta, encode_meta, encode_runtime
from .occurrences import Run, Verdict, aware, decide
from .records import Keys
from .store import Store

__all__ = ("RedBeatSchedulerEntry", "store_of")

#: Score of an entry that is never due: finished, disabled or quarantined.
PARKED = -1.0

#: Seconds after which a disabled entry asks to be looked at again, when it is asked.
DISABLED_RECHECK = 5.0

#: How often ``save()`` tries again when the entry ran in between, before it insists.
SAVE_ATTEMPTS = 5

Self = TypeVar("Self", bound="RedBeatSchedulerEntry")


def store_of(app: Any, client: Any = None) -> Store:
    """Return the store of an app's schedule, on ``client`` or on the client of the app."""
    conf = ensure_conf(app)
    keys = Keys(conf.key_prefix, conf.schedule_key, conf.statics_key, conf.quarantine_key)
    return Store(get_redis(app) if client is None else client, keys)


class RedBeatSchedulerEntry(ScheduleEntry):
    """A periodic task.

    Arguments:
        name: how the user calls it; its key is the prefix plus this. ``str()`` is applied.
        task: name of the task to send.
        schedule: seconds, a timedelta, or a schedule of Celery or of this package.
        args, kwargs: arguments of the task.
        enabled: a disabled entry is kept and never due.
        options: options of ``apply_async``.
        clsargs: ``app``, ``last_run_at``, ``total_run_count``, ``relative``.

    Making an entry does not touch Redis. Attributes are changed freely, then :meth:`save` d.
    """

    #: The nominal instant of the last run, None when it is not known.
    scheduled_at: datetime | None = None

    #: Set while a beat holds a claim on the entry; then nothing is written by the entry itself.
    run: Run | None = None

    #: Text of the stored meta this entry was made from; None for an entry not seen in Redis.
    _seen_meta: str | None = None

    def __init__(
        self,
        name: str | None = None,
        task: str | None = None,
        schedule: Any = None,
        args: Any = None,
        kwargs: dict[str, Any] | None = None,
        enabled: bool = True,
        options: dict[str, Any] | None = None,
        **clsargs: Any,
    ) -> None:
        clsargs["app"] = app_or_default(clsargs.get("app"))
        given = clsargs.get("last_run_at") is not None
        super().__init__(
            name=None if name is None else str(name),
            task=task,
            schedule=schedule,
            args=args,
            kwargs=kwargs,
            options=options,
            **clsargs,
        )
        self.enabled = enabled
        # What save() may take for unchanged: a run the caller did not tell about.
        self._known_history = (None if given else self.last_run_at, self.total_run_count)

    # -- names ---------------------------------------------------------------------------------

    @staticmethod
    def generate_key(app: Any, name: str) -> str:
        """Return the key of the entry called ``name``."""
        return str(ensure_conf(app).key_prefix) + str(name)

    @property
    def key(self) -> str:
        """The Redis key of the entry."""
        if self.name is None:
            raise InvalidEntryError("name", "the entry has none; give it one")
        return self.generate_key(self.app, self.name)

    # -- loading -------------------------------------------------------------------------------

    @staticmethod
    def decode_definition(definition: str | bytes) -> dict[str, Any]:
        """Return the constructor arguments in a definition; raises :exc:`DecodeError`."""
        return decode_definition(definition)

    @staticmethod
    def decode_meta(
        meta: str | bytes | None,
        app: Any = None,  # noqa: ARG004 - RedBeat 2 takes it
    ) -> dict[str, Any]:
        """Return a run history, ``{"last_run_at": None}`` when there is none."""
        return decode_meta(meta)

    @staticmethod
    def load_definition(
        key: str, app: Any = None, definition: str | bytes | None = None
    ) -> dict[str, Any]:
        """Return the stored constructor arguments; raises KeyError. One round trip."""
        if definition is None:
            definition = store_of(app).load(key)[0]
        if definition is None:
            raise KeyError(key)
        return decode_definition(definition)

    @staticmethod
    def load_meta(key: str, app: Any = None) -> dict[str, Any]:
        """Return the stored run history, ``{"last_run_at": None}`` for none. One round trip."""
        return decode_meta(store_of(app).load(key)[1])

    @classmethod
    def from_key(cls: type[Self], key: str, app: Any = None) -> Self:
        """Load an entry by its full key.

        Raises KeyError when there is none and :exc:`DecodeError` when it cannot be understood.
        One round trip.
        """
        app = app_or_default(app)
        definition, meta, policy, runtime = store_of(app).load(key)
        if definition is None:
            raise KeyError(key)
        return cls.from_texts(app, definition, meta, policy, runtime)

    @classmethod
    def from_texts(
        cls: type[Self], app: Any, definition: str, meta: str, policy: str, runtime: str
    ) -> Self:
        """Make an entry from the fields of its hash; raises :exc:`DecodeError`. No round trip."""
        return cls.from_definition(app, definition, policy).with_history(meta, runtime)

    @classmethod
    def from_definition(cls: type[Self], app: Any, definition: str, policy: str = "") -> Self:
        """Make an entry without history; raises :exc:`DecodeError`. No round trip."""
        arguments = decode_policy(policy, decode_definition(definition))
        try:
            return cls(app=app, **arguments)
        except (TypeError, ValueError) as error:
            raise DecodeError("definition", f"{cls.__name__} refuses it: {error}") from error

    def with_history(self: Self, meta: str, runtime: str = "") -> Self:
        """Return a copy with the stored history; raises :exc:`DecodeError`. No round trip."""
        entry = self._copy()
        entry.recall(meta, runtime)
        return entry

    def recall(self, meta: str, runtime: str = "") -> None:
        """Take over a stored history; raises :exc:`DecodeError`. No round trip."""
        self._adopt(History.read(meta, runtime), meta)

    def _adopt(self, history: History, meta: str) -> None:
        self.last_run_at = history.last_run_at
        self.total_run_count = history.total_run_count
        self.scheduled_at = history.scheduled_at
        self._known_history = (self.last_run_at, self.total_run_count)
        self._seen_meta = meta

    # -- when it is due ------------------------------------------------------------------------

    @property
    def anchor(self) -> datetime | None:
        """The instant in UTC from which the next run counts, None when it never ran."""
        if self.last_run_at is None:
            return None
        if self.scheduled_at is not None and self.last_run_at == self._known_history[0]:
            return self.scheduled_at
        return aware(self.last_run_at)

    def verdict(self) -> Verdict:
        """Return which occurrence is due, and when the next one is. No round trip."""
        run = self.run
        if run is None:
            now = aware(self.default_now())
            return self._decide(now, now)
        if run.verdict is None:
            run.verdict = self._decide(run.now, run.due)
        return run.verdict

    def _decide(self, now: datetime, due: datetime) -> Verdict:
        last_run_at = self.last_run_at and aware(self.last_run_at)
        return decide(self.schedule, last_run_at, self.anchor, now, due, self.app.timezone)

    def is_due(self) -> schedstate:
        """Return (whether it is due, seconds until the run after that; None = never)."""
        if not self.enabled:
            return schedstate(False, DISABLED_RECHECK)
        verdict = self.verdict()
        if verdict.next_at is None:
            return schedstate(verdict.due, None)
        now = self.run.now if self.run else aware(self.default_now())
        return schedstate(verdict.due, max((verdict.next_at - now).total_seconds(), 0.0))

    @property
    def due_at(self) -> datetime | None:
        """The next run, UTC: now when it never ran or is overdue, None when nothing is left."""
        verdict = self.verdict()
        return aware(self.default_now()) if verdict.due else verdict.next_at

    @property
    def score(self) -> float:
        """The next run as UNIX seconds; -1 when it is disabled or nothing is left."""
        due_at = self.due_at if self.enabled else None
        return PARKED if due_at is None else to_timestamp(due_at)

    @property
    def rank(self) -> int | None:
        """The position in due order, None when it is not scheduled. One round trip."""
        return store_of(self.app).rank(self.key)

    def _stored_score(self) -> float | None:
        """Return the score to store: None = due at once, by the clock of Redis."""
        if not self.enabled:
            return PARKED
        verdict = self.verdict()
        if verdict.due:
            return None
        return PARKED if verdict.next_at is None else verdict.next_at.timestamp()

    # -- saving --------------------------------------------------------------------------------

    def definition(self) -> dict[str, Any]:
        """Return what is stored as ``definition``; a subclass adds its own arguments here."""
        return {
            "name": self.name,
            "task": self.task,
            "args": self.args,
            "kwargs": self.kwargs,
            "options": self.options,
            "schedule": self.schedule,
            "enabled": self.enabled,
        }

    def texts(self) -> tuple[str, str]:
        """Return definition and policy as stored; raises :exc:`InvalidEntryError`."""
        conf = ensure_conf(self.app)
        reserved = {conf.schedule_key, conf.statics_key, conf.quarantine_key, conf.lock_key}
        if self.name and self.key in reserved:
            raise InvalidEntryError("name", f"{self.name!r} is the name of a key of RedBeat's own")
        return encode_definition(self.definition()), encode_policy(self.schedule)

    def history_text(self) -> str:
        """Return the history as stored in ``meta``."""
        if self.total_run_count:
            return encode_meta(self.last_run_at, self.total_run_count)
        return encode_meta(self.last_run_at)

    def save(self: Self) -> Self:
        """Store the entry; it takes effect at once. Returns itself.

        The last writer wins, but for the history: runs recorded since the entry was made or loaded
        are kept, unless ``last_run_at`` or ``total_run_count`` was changed here. Raises
        :exc:`InvalidEntryError`, and then nothing is written. One round trip, one more for each
        run that was recorded meanwhile.
        """
        definition, policy = self.texts()
        store, key = store_of(self.app), self.key
        for attempt in range(SAVE_ATTEMPTS + 1):
            fresh = self._seen_meta is None
            meta = self.history_text() if fresh or self._history_changed() else ""
            seen = None if attempt == SAVE_ATTEMPTS else self._seen_meta or ""
            code, stored, runtime = store.save(
                key, definition, policy, meta, "", seen, self._stored_score()
            )
            if code == 1:
                self._saved(meta)
                break
            self._merge(stored, runtime)
        return self

    def _history_changed(self) -> bool:
        return (self.last_run_at, self.total_run_count) != self._known_history

    def _saved(self, meta: str) -> None:
        if meta:
            if self._history_changed():
                self.scheduled_at = None
            self._seen_meta = meta
        self._known_history = (self.last_run_at, self.total_run_count)

    def _merge(self, meta: str, runtime: str) -> None:
        """Take over the stored history, but for what was changed here."""
        known_last, known_count = self._known_history
        mine_last, mine_count = self.last_run_at, self.total_run_count
        try:
            stored = History.read(meta, runtime)
        except DecodeError:
            self._seen_meta = meta
            self._known_history = (mine_last, -1)  # unreadable: ours replaces it
            return
        self._adopt(stored, meta)
        if mine_last != known_last:
            self.last_run_at = mine_last
        if mine_count != known_count:
            self.total_run_count = mine_count

    def delete(self) -> None:
        """Remove the entry and its history; a claim held on it ends. One round trip."""
        store_of(self.app).delete(self.key)

    # -- running -------------------------------------------------------------------------------

    def reschedule(self, last_run_at: datetime | None = None) -> None:
        """Note a run at ``last_run_at`` (default now) and count the next one from there.

        The run count stays. Nothing is written when the entry was deleted. One round trip.
        """
        self.last_run_at = last_run_at or self.default_now()
        self.scheduled_at = None
        self._record()

    def _record(self, scheduled_at: datetime | None = None) -> None:
        runtime = ""
        if scheduled_at is not None and self.last_run_at is not None:
            runtime = encode_runtime(scheduled_at, self.last_run_at)
        meta = self.history_text()
        code, _, _ = store_of(self.app).save(
            self.key, meta=meta, runtime=runtime, seen=None, score=self._stored_score()
        )
        if code == 1:
            self._seen_meta = meta
            self._known_history = (self.last_run_at, self.total_run_count)

    def _next_instance(
        self: Self, last_run_at: datetime | None = None, only_update_last_run_at: bool = False
    ) -> Self:
        """Return the entry as it is after a run.

        Outside a claim the run is recorded at once, in one round trip; within a claim the beat
        records it after the message was sent.
        """
        run, verdict = self.run, self.verdict()
        entry = self._copy()
        entry.last_run_at = last_run_at or (run.now if run else self.default_now())
        entry.scheduled_at = None if last_run_at else verdict.scheduled_at
        if not only_update_last_run_at:
            entry.total_run_count += 1
        entry._known_history = (entry.last_run_at, entry.total_run_count)
        if run is None:
            entry._record(entry.scheduled_at)
        else:
            run.successor = entry
        return entry

    __next__ = next = _next_instance

    # -- as a Python object --------------------------------------------------------------------

    def claimed(self: Self, now: datetime, due: datetime) -> Self:
        """Return a copy on which a beat holds a claim; ``now`` is the time of Redis."""
        entry = self._copy()
        entry.run = Run(now, due)
        return entry

    def _copy(self: Self) -> Self:
        entry = type(self).__new__(type(self))
        entry.__dict__.update(self.__dict__)
        entry.run = None
        return entry

    __copy__ = _copy

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """Yield the constructor arguments, as Celery does."""
        hidden = ("run", "scheduled_at")
        return (
            (name, value)
            for name, value in vars(self).items()
            if name not in hidden and not name.startswith("_")
        )

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        state = {name: value for name, value in vars(self).items() if name != "app"}
        return _restore, (type(self), state)

    def __repr__(self) -> str:
        call = f"{self.task}({', '.join(_arguments(self.args, self.kwargs))})"
        return f"<{type(self).__name__}: {self.name} {call} {self.schedule}>"


def _restore(cls: type[Self], state: dict[str, Any]) -> Self:
    """Return a pickled entry; it belongs to the current app."""
    entry = cls.__new__(cls)
    entry.__dict__.update(state, app=app_or_default(None))
    return entry


def _arguments(args: Any, kwargs: dict[str, Any] | None) -> list[str]:
    shown = [repr(value) for value in args or ()]
    return shown + [f"{name}={value!r}" for name, value in (kwargs or {}).items()]
