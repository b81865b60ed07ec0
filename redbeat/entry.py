"""An entry of the schedule: what the user stores, and what happened to it so far."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from .codec.writers import warn_of_app
from .config import ensure_conf, real_app
from .entries.access import store_of
from .entries.definition import (
    decode_definition,
    decode_policy,
    encode_definition,
    encode_policy,
    flat_text,
)
from .entries.due import PARKED
from .entries.history import History, decode_meta, encode_runtime
from .entries.lazy import hidden, revealed, with_field
from .entries.nominal import nominal
from .entries.occurrences import Run, aware
from .entries.pauses import Pause
from .entries.policy import FIELDS as POLICY_FIELDS
from .entries.policy import Policy
from .entries.task_options import stored_options
from .entries.verbs import OperatedEntry
from .errors import DecodeError, InvalidEntryError, NotAllowedError, UnknownTypeError
from .schedules import RuleSchedule
from .storage.records import SAVED, Writing, key_of, text_of
from .timing import asks_itself, in_zone

__all__ = ("PARKED", "RedBeatSchedulerEntry", "store_of")

Self = TypeVar("Self", bound="RedBeatSchedulerEntry")

#: What every meta may hold.
META = ("last_run_at", "total_run_count")


class RedBeatSchedulerEntry(OperatedEntry):
    """A periodic task.

    Arguments:
        name: how the user calls it; its key is the prefix plus this. ``str()`` is applied.
        task: name of the task to send.
        schedule: seconds, a timedelta, or a schedule of Celery or of this package.
        args, kwargs: arguments of the task.
        enabled: a disabled entry is kept and never due.
        options: options of ``apply_async``.
        clsargs: ``app``, ``last_run_at``, ``total_run_count``, ``relative``, and the fields of a
            :class:`~redbeat.entries.policy.Policy`. ``one_off=True`` is ``max_runs=1``.

    Making an entry does not touch Redis. Attributes are changed freely, then stored with
    :meth:`save`. Raises :exc:`InvalidEntryError` for what is no schedule at all; the rest is
    checked by ``save()``.
    """

    schedule: Any
    kwargs: dict[str, Any]
    options: dict[str, Any]

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
        clsargs["app"] = real_app(clsargs.get("app"))
        if self._foreign_fields:
            # What a subclass hands on is meant for the policy.
            self._foreign_fields = self._foreign_fields.difference(clsargs)
        policy = {field: clsargs.pop(field, None) for field in POLICY_FIELDS}
        if clsargs.pop("one_off", False):
            policy["max_runs"] = policy["max_runs"] or 1
        given = clsargs.get("last_run_at") is not None
        try:
            super().__init__(
                name=None if name is None else str(name),
                task=task,
                schedule=schedule,
                args=args,
                kwargs=kwargs,
                options=options,
                **clsargs,
            )
        except (AttributeError, ValueError, OverflowError) as error:
            problem = f"{schedule!r:.60} is no schedule; use seconds, a crontab or an rrule"
            raise InvalidEntryError("schedule", problem) from error
        if not given and isinstance(self.schedule, RuleSchedule):
            self.last_run_at = self.schedule.counts_from(aware(self.default_now()))
        self.enabled = enabled
        for field, value in policy.items():
            if value is not None:
                setattr(self, field, value)
        if self.timezone is not None:
            self._give_zone()
        # What save() takes for unchanged: a history the caller did not tell about.
        self._known_history = (None if given else self.last_run_at, 0)

    def _give_zone(self) -> None:
        """Have the schedule tell the zone of the entry, as Celery's and Sentry's code reads it."""
        with suppress(InvalidEntryError):  # save() tells of a zone that is none
            zone = Policy.of({"timezone": self.timezone}).zone
            if zone is not None:
                self.schedule = in_zone(self.schedule, zone)

    #: Whether an argument stands for a function that only ``beat_schedule`` has.
    _lazy = False

    # -- names ---------------------------------------------------------------------------------

    @staticmethod
    def generate_key(app: Any, name: str) -> str:
        """Return the key of the entry called ``name``."""
        return str(ensure_conf(app).key_prefix) + str(name)

    @property
    def key(self) -> str:
        """The Redis key of the entry."""
        if not self.name:
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
            definition = store_of(app).load(text_of(key))[0]
        if definition is None:
            raise KeyError(key)
        return decode_definition(definition)

    @staticmethod
    def load_meta(key: str, app: Any = None) -> dict[str, Any]:
        """Return the stored run history, ``{"last_run_at": None}`` for none. One round trip."""
        return decode_meta(store_of(app).load(text_of(key))[1])

    @classmethod
    def from_key(cls: type[Self], key: str, app: Any = None) -> Self:
        """Load an entry by its full key.

        Raises KeyError when there is none and :exc:`DecodeError` when it cannot be understood.
        One round trip.
        """
        app = real_app(app)
        definition, *texts = store_of(app).load(text_of(key))
        if definition is None:
            raise KeyError(key)
        return cls.from_texts(app, definition, *texts)

    @classmethod
    def from_texts(
        cls: type[Self],
        app: Any,
        definition: str,
        meta: str,
        policy: str,
        runtime: str,
        identity: str = "",
    ) -> Self:
        """Make an entry from the fields of its hash; raises :exc:`DecodeError`. No round trip."""
        entry = cls.from_definition(app, definition, policy).with_history(meta, runtime)
        entry._identity = identity
        return entry

    @classmethod
    def from_definition(cls: type[Self], app: Any, definition: str, policy: str = "") -> Self:
        """Make an entry without history; raises :exc:`DecodeError`. No round trip.

        That is :exc:`UnknownTypeError` for what another process may be able to read.
        """
        stored = cls._arguments_in(definition)
        arguments = decode_policy(policy, stored, cls._foreign_fields)
        lazy, pause = revealed(arguments, policy), Pause.read(policy)
        try:
            entry = cls(app=app, **arguments)
            entry._lazy = lazy
            entry._pause = pause
            entry._seen_texts = (definition, policy)
            return entry
        except Exception as error:
            # The texts were checked before: an unknown argument, or code of the user's own.
            own = not isinstance(error, InvalidEntryError) or asks_itself(arguments["schedule"])
            kind = UnknownTypeError if own else DecodeError
            raise kind("definition", f"{cls.__name__} refuses it: {error}") from error

    @classmethod
    def loads_itself(cls) -> bool:
        """Return whether a subclass overrides :meth:`from_key`."""
        ours: Any = RedBeatSchedulerEntry.from_key
        return getattr(cls.from_key, "__func__", None) is not ours.__func__

    @classmethod
    def _arguments_in(cls, definition: str) -> dict[str, Any]:
        """Return the constructor arguments; raises :exc:`DecodeError`, also for a subclass."""
        try:
            return dict(cls.decode_definition(definition))
        except DecodeError:
            raise
        except Exception as error:
            problem = f"decode_definition() of {cls.__name__} refuses it: {error!r}"
            raise UnknownTypeError("definition", problem) from error

    @classmethod
    def reads_meta_itself(cls) -> bool:
        """Return whether a subclass overrides :meth:`decode_meta`."""
        return cls.decode_meta is not RedBeatSchedulerEntry.decode_meta

    def _history_in(self, meta: str, runtime: str) -> History:
        """Return a stored history; what else a subclass finds in ``meta`` becomes an attribute."""
        if not self.reads_meta_itself():
            return super()._history_in(meta, runtime)
        try:
            found = dict(self.decode_meta(meta or None))
        except DecodeError:
            raise
        except Exception as error:
            problem = f"decode_meta() of {type(self).__name__} refuses it: {error!r}"
            raise UnknownTypeError("meta", problem) from error
        history = {name: found.pop(name) for name in META if name in found}
        for name, value in found.items():
            setattr(self, name, value)
        return History.of_meta(history, runtime)

    def with_history(self: Self, meta: str, runtime: str = "") -> Self:
        """Return a copy with the stored history; raises :exc:`DecodeError`. No round trip."""
        entry = self._copy()
        entry.recall(meta, runtime)
        return entry

    def is_of(self, key: str, definition: str, policy: str) -> bool:
        """Whether it was made from these stored texts."""
        return self.key == key and self._seen_texts == (definition, policy)

    @property
    def rank(self) -> int | None:
        """The position in due order, None when it is not scheduled. One round trip."""
        return store_of(self.app).rank(self.key)

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
        if self.name:
            self._own_key()
        may_overlap = self.policy_field("overlap") == "allow"
        if not may_overlap and not getattr(self.app, "redbeat_tracks_runs", False):
            problem = "beat would not learn when a run ends; call redbeat.worker.enable(app)"
            raise InvalidEntryError("overlap", problem)
        self.check_allowed()
        text, own = self._definition_text()
        if self.timezone is None:
            warn_of_app(self.schedule, self.app)
        policy = encode_policy(self.schedule, self.policy)
        pause = Pause.of_entry(self)
        return text, with_field(policy, {**own, **pause.field()} if pause else own)

    def _writing(self) -> Writing:
        """Return what is to be written; raises :exc:`InvalidEntryError`."""
        definition, policy = self.texts()
        return Writing(self.key, definition, policy)

    def _definition_text(self) -> tuple[str, dict[str, Any]]:
        """Return the definition as stored, and what a policy adds to it."""
        definition = self.definition()
        text = flat_text(definition)
        if text is not None:
            return text, {}
        definition, lazy = hidden(definition, self._static)
        options = stored_options(definition.get("options"))
        if options is not definition.get("options"):
            definition = {**definition, "options": options}
        return encode_definition(definition), lazy

    def check_allowed(self) -> None:
        """Raise :exc:`NotAllowedError` for a task that ``redbeat_task_allowlist`` leaves out."""
        allowlist = ensure_conf(self.app).task_allowlist
        refused = allowlist and allowlist.refusal(self.task, self.options)
        if refused:
            raise NotAllowedError(*refused)

    def _own_key(self) -> str:
        """Return the key to write to; raises :exc:`InvalidEntryError` for one that is not ours."""
        conf, key = ensure_conf(self.app), self.key
        # The usual lock key is taken even where this app has no lock: another may have it.
        if self.name == ":lock" or key == conf.lock_key or key in conf.reserved_keys:
            raise InvalidEntryError(
                "name", f"{self.name!r} is the name of a key of RedBeat's own; use another one"
            )
        try:
            key_of(key)
        except UnicodeEncodeError as error:
            raise InvalidEntryError(
                "name", f"{self.name!r} cannot be written as UTF-8; use another one"
            ) from error
        return key

    if TYPE_CHECKING:
        # What type checkers let a subclass override by ``def save(self)``, as for RedBeat 2.
        def save(self: Self, *args: Any, **kwargs: Any) -> Self: ...

    else:

        def save(self, if_unchanged: bool = False) -> Self:
            """Store the entry; it takes effect at once. Returns itself.

            The last writer wins, but for the history: runs recorded since the entry was made or
            loaded are kept, unless ``last_run_at`` or ``total_run_count`` was changed here. Raises
            :exc:`InvalidEntryError`, and then nothing is written. One round trip, one more for each
            run that was recorded meanwhile, and for a new object that changes what is stored.

            An entry that has finished runs again if its schedule, time zone, window, limit or
            history was changed; for anything else it stays finished, and a warning is logged.

            With ``if_unchanged`` the first writer wins: :exc:`ConflictError` when the entry was
            changed or deleted since it was loaded, or when one that was made anew is there already.
            Runs are no change.
            """
            return self._save(if_unchanged)

    def _save(self: Self, if_unchanged: bool) -> Self:
        writing = self._writing()
        if if_unchanged:
            writing = writing._replace(believed=self._seen_texts)
        self._write(store_of(self.app), writing)
        return self

    def delete(self) -> None:
        """Remove the entry and its history; a claim held on it ends. One round trip.

        Only the name is needed. Raises :exc:`InvalidEntryError` for the name of a key of RedBeat's.
        """
        store_of(self.app).delete(self._own_key())
        self._new_identity = ""

    # -- running -------------------------------------------------------------------------------

    def reschedule(self, last_run_at: datetime | None = None) -> None:
        """Note a run at ``last_run_at`` (default now) and count the next one from there.

        The run count stays as it is stored, but for an entry whose ``max_runs`` are used up: it
        begins again with 0. Nothing is written when the entry was deleted. One round trip, one more
        for each run that was recorded meanwhile.
        """
        self.last_run_at = last_run_at or self.default_now()
        self.scheduled_at = None
        self._write(store_of(self.app), Writing(self._own_key()))

    def _record_run(self) -> None:
        runtime = ""
        if self.scheduled_at is not None and self.last_run_at is not None:
            runtime = encode_runtime(nominal(self.scheduled_at), self.last_run_at)
        meta = self.history_text()
        saved = store_of(self.app).save(
            self._own_key(), meta=meta, runtime=runtime, seen=None, score=self._stored_score()
        )
        if saved.code == SAVED:
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
        entry.scheduled_at = None if last_run_at else verdict.anchor or verdict.scheduled_at
        if not only_update_last_run_at:
            entry.total_run_count += 1
        entry._known_history = (entry.last_run_at, entry.total_run_count)
        if run is None:
            entry._record_run()
        else:
            run.successor = entry
        return entry

    __next__ = next = _next_instance

    # -- as a Python object --------------------------------------------------------------------

    def claimed(self: Self, now: datetime, due: datetime) -> Self:
        """Return a copy on which a beat holds a claim; ``now`` is the time of Redis."""
        entry = self._copy()
        entry.run = Run(now, due, now)
        return entry

    def _copy(self: Self) -> Self:
        cls = type(self)
        entry = cls.__new__(cls)
        entry.__dict__ = {**self.__dict__, "run": None}
        return entry

    __copy__ = _copy

    def __deepcopy__(self: Self, memo: dict[int, Any]) -> Self:
        """Return a copy with arguments and options of its own; app and schedule are shared."""
        entry = self._copy()
        for name in ("args", "kwargs", "options"):
            setattr(entry, name, copy.deepcopy(getattr(self, name), memo))
        return entry

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """Yield the constructor arguments, as Celery does."""
        hidden = ("run", "scheduled_at", "put_up")
        return (
            (name, value)
            for name, value in vars(self).items()
            if name not in hidden and not name.startswith("_")
        )

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        state = {name: value for name, value in vars(self).items() if name not in ("app", "run")}
        return _restore, (type(self), state)

    def __repr__(self) -> str:
        call = f"{self.task}({', '.join(_arguments(self.args, self.kwargs))})"
        return f"<{type(self).__name__}: {self.name} {call} {self.schedule}>"


def _restore(cls: type[Self], state: dict[str, Any]) -> Self:
    """Return a pickled entry; it belongs to the current app."""
    entry = cls.__new__(cls)
    entry.__dict__.update(state, app=real_app())
    return entry


def _arguments(args: Any, kwargs: dict[str, Any] | None) -> list[str]:
    shown = [repr(value) for value in args or ()]
    return shown + [f"{name}={value!r}" for name, value in (kwargs or {}).items()]
