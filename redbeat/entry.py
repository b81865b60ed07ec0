"""An entry of the schedule: what the user stores, and what happened to it so far."""

from __future__ import annotations

import copy
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta, tzinfo
from functools import partial
from inspect import signature
from secrets import token_urlsafe
from time import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

from celery.beat import ScheduleEntry
from celery.schedules import crontab, schedstate
from celery.utils.log import get_logger

from redbeat.calendar.zones import UTC, as_utc, from_timestamp
from redbeat.codec.writers import warn_of_app
from redbeat.config import ensure_conf, real_app
from redbeat.decoder import to_timestamp
from redbeat.entries.decide import (
    CLOCK_STEP,
    DISABLED,
    PARKED,
    TICK,
    Decision,
    Plan,
    Run,
    aware,
    decide,
    has_clock,
    same_instant,
    score_of,
    task_id_of,
)
from redbeat.entries.definition import (
    decode_definition,
    decode_policy,
    encode_definition,
    encode_policy,
    flat_text,
    stored_options,
)
from redbeat.entries.history import (
    History,
    Texts,
    after_saved_anew,
    decode_meta,
    encode_meta,
    encode_runtime,
)
from redbeat.entries.lazy import hidden, revealed, with_field
from redbeat.entries.pauses import Pause, pause_entries, resume_entries, resumed
from redbeat.entries.policy import DEFAULT, FIELDS, Policy
from redbeat.entries.runs import Occurrence, nominal, read_history
from redbeat.entries.status import EntryStatus, Record
from redbeat.errors import (
    ConflictError,
    DecodeError,
    InvalidEntryError,
    NotAllowedError,
    UnknownTypeError,
)
from redbeat.schedules.next_run import asks_itself, in_zone
from redbeat.schedules.rule import RuleSchedule
from redbeat.storage.reading import not_an_entry
from redbeat.storage.records import (
    CLOCK_AHEAD,
    CONFLICT,
    HISTORY_DIFFERS,
    SAME,
    SAVED,
    Saved,
    Writing,
    key_of,
)
from redbeat.storage.store import Store, store_of
from redbeat.storage.wire import text_of

__all__ = ("PARKED", "RedBeatSchedulerEntry", "store_of")

logger = get_logger("celery.beat")

Self = TypeVar("Self", bound="RedBeatSchedulerEntry")

#: Triggered runs of one entry that may wait for a beat.
MAX_TRIGGERS: Final = 100

#: What becomes of a trigger, as ``trigger.lua`` returns it.
UNKNOWN, QUARANTINED, TOO_MANY, NOT_A_HASH = 0, -1, -2, -3

#: How often a write is tried again when the entry ran in between, before it insists.
SAVE_ATTEMPTS = 5

#: Seconds by which a score may differ from what was written: it has six decimals.
SCORE_PRECISION = 2e-6

#: Seconds after which a disabled entry asks to be looked at again, when it is asked.
DISABLED_RECHECK = 5.0

NAMES = frozenset(FIELDS)

#: What every meta may hold.
META = ("last_run_at", "total_run_count")


class RedBeatSchedulerEntry(ScheduleEntry):
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
    enabled: bool
    #: When it ran last; None to have it run now.
    last_run_at: datetime | None
    total_run_count: int

    # What a policy may say, see there for what it is by default.
    timezone: str | None
    start_time: datetime | None
    end_time: datetime | None
    max_runs: int | None
    on_finish: str
    misfire_grace_time: float | None
    coalesce: str
    catch_up_limit: int | None
    jitter: float
    overlap: str
    overlap_timeout: float
    delivery: str | None

    #: The nominal instant of the last run, None when it is not known.
    scheduled_at: datetime | None = None

    #: Set while a beat holds a claim on the entry; then nothing is written by the entry itself.
    run: Run | None = None

    #: Whether the sorted set has it up to be looked at, whatever the entry itself says.
    put_up = False

    #: Fields of a policy whose names a subclass uses for attributes or arguments of its own.
    _foreign_fields: frozenset[str] = frozenset()

    #: The zone of the app, where it was looked up already.
    _zone: tzinfo | None = None

    #: Text of the stored meta this entry was made from; None for an entry not seen in Redis.
    _seen_meta: str | None = None

    #: The stored definition and policy this entry was made from; empty when not seen in Redis.
    _seen_texts: tuple[str, str] = ("", "")

    #: An operator's pause that lies on it, while it is not enabled.
    _pause: Pause | None = None

    #: The last run and the run count that are not a change of the caller's.
    _known_history: tuple[Any, int] = (None, 0)

    #: What tells the stored entry from one of the same name that was deleted; "" for none.
    _identity = ""

    #: The identity that the entry gets if it is new, as long as it is not known to be saved.
    _new_identity = ""

    #: The definition and policy that a refused write found, None where there was none.
    _found_texts: Texts | None = None

    #: Last run and run count as they were before this write began the entry again, None for none.
    _before_arming: tuple[Any, int] | None = None

    #: Whether it stands in ``beat_schedule``; then its arguments may be computed at each dispatch.
    _static = False

    #: Whether an argument stands for a function that only ``beat_schedule`` has.
    _lazy = False

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
        policy = {field: clsargs.pop(field, None) for field in FIELDS}
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

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for base in cls.__mro__:  # what is mixed in is the subclass's own too
            if base in RedBeatSchedulerEntry.__mro__:
                continue
            named = {*vars(base)}
            with suppress(KeyError, TypeError, ValueError):
                named |= {*signature(vars(base)["__init__"]).parameters}
            cls._foreign_fields |= NAMES & named

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
            return History.read(meta, runtime)
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

    # -- history and time -------------------------------------------------------------------------

    def policy_field(self, name: str) -> Any:
        """Return what the entry says in a field of its policy, else the default."""
        return getattr(DEFAULT if name in self._foreign_fields else self, name)

    def default_now(self) -> datetime:
        """Return the time of the schedule's clock, or of the app's where there is no schedule."""
        if has_clock(self.schedule):
            now: datetime = self.schedule.now()
            return now
        # What Celery computes in several steps, at each entry that is made.
        return datetime.now(self.app.timezone)

    def _present(self) -> datetime:
        """Return the instant in UTC at which to decide outside a claim.

        The clock of a schedule tells it, unless that is one on the wall: without a zone.
        """
        now = self.default_now()
        return datetime.now(UTC) if now.tzinfo is None else as_utc(now)

    def recall(self, meta: str, runtime: str = "") -> None:
        """Take over a stored history; raises :exc:`DecodeError`. No round trip."""
        self.adopt(meta, *self._history_in(meta, runtime))

    def adopt(
        self,
        meta: str,
        last_run_at: datetime | None,
        total_run_count: int,
        scheduled_at: datetime | None,
    ) -> None:
        """Take over a history, as in :class:`History`, and the text of it. No round trip."""
        self.last_run_at, self.total_run_count = last_run_at, total_run_count
        self.scheduled_at = scheduled_at
        self._known_history = (last_run_at, total_run_count)
        self._seen_meta = meta

    @property
    def anchor(self) -> datetime | None:
        """The instant in UTC from which the next run counts, None when it never ran."""
        last, known = self.last_run_at, self._known_history[0]
        if last is None:
            return None
        if self.scheduled_at and same_instant(last, known):
            return self.scheduled_at
        return aware(last)

    def ran_after(self, now: datetime) -> bool:
        """Whether a beat recorded a run after ``now``: the clock of Redis was ahead then.

        What an application wrote as the last run is no run of a beat.
        """
        last, known = self.last_run_at, self._known_history[0]
        if last is None or self.scheduled_at is None or not same_instant(last, known):
            return False
        return aware(last) > now + timedelta(seconds=CLOCK_STEP)

    def decision(self) -> Decision:
        """Return which occurrence is due, and when the next one is. No round trip."""
        run = self.run
        if run is None:
            now = self._present()
            return self._decide(now, now)
        decision = run.decision
        if decision is None:
            # Code of the user's own knows the present only.
            at = run.now if asks_itself(self.schedule) else run.decided_at
            decision = run.decision = self._decide(at, run.due)
        return decision

    @property
    def is_too_late(self) -> bool:
        """Whether the run that was decided on is too old to be sent by now."""
        run = self.run
        scheduled_at = run and run.decision and run.decision.scheduled_at
        if run is None or not scheduled_at or self.last_run_at is None:
            return False
        policy, zone = self._rules()
        grace = policy.misfire_grace_time
        if grace is None or asks_itself(self.schedule):
            return False
        up_at = Plan(self.schedule, zone, policy, str(self.name)).up_at(scheduled_at)
        return run.now - up_at > timedelta(seconds=grace)

    @property
    def policy(self) -> Policy:
        """What the attributes say; raises :exc:`InvalidEntryError` that names the field."""
        given = self.__dict__
        if NAMES.isdisjoint(given):
            return DEFAULT
        foreign = self._foreign_fields
        return Policy.of(
            {name: given[name] for name in FIELDS if name in given and name not in foreign}
        )

    def _decide(self, now: datetime, due: datetime) -> Decision:
        policy, zone = self._rules()
        last, anchor = self.last_run_at, self.anchor
        ahead = self.run is not None and anchor is not None and self.ran_after(now)
        if ahead and anchor is not None:
            last = anchor = min(anchor, now)
        runs, name = self.total_run_count, str(self.name)
        decision = decide(self.schedule, last, anchor, now, due, zone, policy, runs, name)
        # Noted as what it counts from, or it would begin to wait again at each look.
        return decision._replace(anchor=now) if ahead and anchor is now else decision

    def _rules(self) -> tuple[Policy, tzinfo]:
        """Return the policy with what the app adds to it, and the zone to read a crontab in."""
        policy = self.policy
        if isinstance(self.schedule, crontab) and policy.misfire_grace_time is None:
            deadline = ensure_conf(self.app).cron_deadline
            if deadline is not None:
                policy = replace(policy, misfire_grace_time=deadline)
        return policy, self._zone or policy.zone or self.app.timezone

    @property
    def runs_left(self) -> int | None:
        """How many runs ``max_runs`` still allows, None for any number."""
        most = self.policy.max_runs
        return None if most is None else max(most - self.total_run_count, 0)

    def upcoming(self, n: int = 10, after: datetime | None = None) -> list[datetime]:
        """Return the next ``n`` nominal instants after ``after`` (default now), UTC.

        Fewer when fewer are left. Whether the entry is enabled does not matter. No round trip.

        A schedule that only its own ``is_due`` knows tells of them by ``remaining_estimate``;
        where it has none, only of the next one.
        """
        since = aware(after) if after else self._present()
        policy, zone = self._rules()
        left = self.runs_left
        if left is not None:
            n = min(n, left)
        plan = Plan(self.schedule, zone, policy, str(self.name))
        anchor = self.anchor
        if asks_itself(self.schedule):
            try:
                return plan.asked(anchor or since, since, n)
            except NotImplementedError:
                at = self.decision().next_at
                return [at] if at is not None and at > since and n > 0 else []
        first = plan.begin(since) if anchor is None else plan.after(anchor)
        found = None if first is None else plan.since(first, since + TICK)
        instants: list[datetime] = []
        while found is not None and len(instants) < n:
            instants.append(found)
            found = plan.after(found)
        return instants

    def is_due(self) -> schedstate:
        """Return (whether it is due, seconds until the run after that; None = never)."""
        if not self.enabled:
            return schedstate(False, DISABLED_RECHECK)
        decision = self.decision()
        if decision.next_at is None:
            return schedstate(decision.due, None)
        now = self.run.now if self.run else self._present()
        return schedstate(decision.due, max((decision.next_at - now).total_seconds(), 0.0))

    @property
    def due_at(self) -> datetime | None:
        """The next run, UTC: now when it never ran or is overdue, None when nothing is left."""
        decision = self.decision()
        return self._present() if decision.due else decision.next_at

    @property
    def score(self) -> float:
        """The next run as UNIX seconds; -1 when nothing is left, -2 when it is disabled."""
        if not self.enabled:
            return DISABLED
        due_at = self.due_at
        return PARKED if due_at is None else to_timestamp(due_at)

    @classmethod
    def scores_itself(cls) -> bool:
        """Return whether a subclass overrides :attr:`score` or :attr:`due_at`."""
        return (
            cls.score is not RedBeatSchedulerEntry.score
            or cls.due_at is not RedBeatSchedulerEntry.due_at
        )

    def _stored_score(self, now: datetime | None = None) -> float | None:
        """Return the score to store: None = due at once, by the clock of Redis.

        ``now`` is UTC, None for what the clock of the entry says. That clock may be wrong. So what
        seems to have finished, to be too late or to have run in the future is due at once: a beat
        decides, and parks it.
        """
        if not self.enabled:
            return DISABLED
        if self.scores_itself():
            return self.score
        decision = self.decision() if now is None else self._decide(now, now)
        if self.ran_after(now or self._present()):
            return None
        if decision.due or decision.missed or decision.next_at is None:
            return None
        return score_of(decision.next_at)

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

    def history_text(self) -> str:
        """Return the history as stored in ``meta``."""
        if self.total_run_count:
            return encode_meta(self.last_run_at, self.total_run_count)
        return encode_meta(self.last_run_at)

    def _check_history(self) -> None:
        last_run_at: Any = self.last_run_at
        count: Any = self.total_run_count
        if last_run_at is not None and not isinstance(last_run_at, datetime):
            problem = f"must be a datetime or None, not {last_run_at!r:.60}"
            raise InvalidEntryError("last_run_at", problem)
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise InvalidEntryError(
                "total_run_count", f"must be a number of runs, 0 at least, not {count!r:.60}"
            )

    def _write(self, store: Store, asked: Writing) -> None:
        """Store texts and history, or only the history when there is no definition.

        Nothing is written for an entry that is gone, unless there is a definition. One round trip,
        one more for each run that was recorded meanwhile, one more for a new object that changes
        what is stored under its name, and one more for a new entry when the clock of this host is
        ahead of Redis: it counts from the time of Redis then.
        """
        self._check_history()
        save_batch(store, [(self, asked)])

    def _with_history(self, asked: Writing, now: datetime, insist: bool) -> Writing:
        """Return what is asked for with history and score as they are at ``now``, UTC.

        With ``insist`` it is written whatever history is stored.
        """
        old, new = self._found_texts or self._seen_texts, (asked.definition, asked.policy)
        self._arm(old, new if asked.definition else old, now)
        fresh = self._seen_meta is None
        meta = self.history_text() if fresh or self._history_changed() else ""
        seen = None if insist else self._seen_meta or ""
        if asked.definition and not self._static:
            self._new_identity = self._new_identity or new_identity()
        key, definition, policy, _, runtime, *_, believed, history, _ = asked
        texts = (key, definition, policy, meta, runtime)
        score, since = self._score_at(now), self._made_up()
        return Writing(*texts, seen, score, since, believed, history, self._new_identity)

    def _score_at(self, now: datetime) -> float | None:
        """Return the score to store, by the clock of the schedule where it has one of its own."""
        usual = type(self).default_now is RedBeatSchedulerEntry.default_now and not has_clock(
            self.schedule
        )
        return self._stored_score(now if usual and self.run is None else None)

    def _written(self, writing: Writing, saved: Saved) -> bool:
        """Take note of what became of a write; False when it is to be tried again."""
        code = saved.code
        if code == SAVED:
            self._saved(writing, saved.identity)
        elif code == HISTORY_DIFFERS:
            self._merge(saved, (saved.definition, saved.policy))
        elif code == SAME:
            self._merge(saved, (writing.definition, writing.policy))
            if not self._history_changed() and self._is_right(saved.score):
                as_stored = writing._replace(meta=saved.meta, score=float(saved.score))
                self._saved(as_stored, saved.identity)
                return True
        elif code == CLOCK_AHEAD:
            self._count_from(from_timestamp(float(saved.score)))
        elif code == CONFLICT:
            raise ConflictError(str(self.name))
        elif writing.definition:
            self._seen_meta = None  # deleted meanwhile: stored anew, with its history
        else:
            return True
        return code == SAVED

    def _made_up(self) -> datetime | None:
        """Return the instant from which an entry counts when nobody has chosen it."""
        before = self._before_arming
        if before is not None and self.last_run_at is not None:
            chosen = same_instant(before[0], self.last_run_at)
            return None if chosen else aware(self.last_run_at)
        if self._seen_meta is not None or self.last_run_at is None or self._history_changed():
            return None
        return aware(self.last_run_at)

    def _count_from(self, now: datetime) -> None:
        self.last_run_at = now
        if self._before_arming is None:
            self._known_history = (now, self.total_run_count)

    def _history_changed(self) -> bool:
        known, count = self._known_history
        return self.total_run_count != count or not same_instant(self.last_run_at, known)

    def _is_right(self, stored: str) -> bool:
        """Whether a stored score is what would be written; one that is up by now is due at once."""
        if not stored:
            return False
        score, found = self._stored_score(), float(stored)
        if score is None:
            parked = found == PARKED and not self.decision().due
            return parked or 0 <= found <= time()
        return abs(found - score) < SCORE_PRECISION

    def _saved(self, writing: Writing, identity: str | None) -> None:
        if not same_instant(self.last_run_at, self._known_history[0]):
            self.scheduled_at = None
        if writing.meta:
            self._seen_meta = writing.meta
        is_new = not (self._found_texts or self._seen_texts)[0]
        if writing.definition and not is_new and (writing.score is None or writing.score < 0):
            self._tell_if_finished()
        self._found_texts = self._before_arming = None
        if writing.definition:
            self._seen_texts = (writing.definition, writing.policy)
            self._identity = writing.identity if identity is None else identity
            self._new_identity = ""
            self._pause = Pause.of_entry(self)
        self._known_history = (self.last_run_at, self.total_run_count)

    def _arm(self, old: Texts, new: Texts, now: datetime) -> bool:
        """Have an entry that has finished begin again where it is saved so that it runs again.

        ``old`` are the stored definition and policy, empty for a new entry, and ``now`` is UTC.
        A run count that was changed here stands. Returns whether it begins again. No round trip.
        """
        last, count = self._known_history
        if not old[0] or not count or self.total_run_count != count:
            return False
        history = History(self.last_run_at, count, self.scheduled_at)
        rewritten = not same_instant(self.last_run_at, last)
        begun = after_saved_anew(history, old, new, now, rewritten, self._foreign_fields)
        if begun is history:
            return False
        self._before_arming = (self.last_run_at, count)
        self.last_run_at, self.total_run_count, self.scheduled_at = begun
        return True

    def _tell_if_finished(self) -> None:
        """Log that an enabled entry does not run although it was saved. No round trip."""
        if self.enabled and self._has_finished():
            logger.warning(
                "Entry %s stays finished: nothing is left to run. To run it again, save it with "
                "another schedule, max_runs or last_run_at, or with total_run_count = 0",
                self.name,
            )

    def _has_finished(self) -> bool:
        """Whether nothing is left after the last run, whatever the time is."""
        if self.runs_left == 0:
            return True
        anchor = self.anchor
        if anchor is None or asks_itself(self.schedule):
            return False
        policy, zone = self._rules()
        return Plan(self.schedule, zone, policy, str(self.name)).after(anchor) is None

    def _merge(self, found: Saved, texts: Texts) -> None:
        """Take over the stored history, but for what was changed here; note the stored texts."""
        meta, self._found_texts = found.meta, texts
        if self._before_arming is not None:
            self.last_run_at, self.total_run_count = self._before_arming
            self._before_arming = None
        known_last, known_count = self._known_history
        mine_last, mine_count = self.last_run_at, self.total_run_count
        try:
            stored = self._history_in(meta, found.runtime)
        except DecodeError:
            self._seen_meta = meta
            self._known_history = (mine_last, -1)  # unreadable: ours replaces it
            return
        self.adopt(meta, *stored)
        if not same_instant(mine_last, known_last):
            self.last_run_at = mine_last
        if mine_count != known_count:
            self.total_run_count = mine_count

    # -- operating --------------------------------------------------------------------------------

    def pause(self, note: str | None = None, by: str | None = None) -> None:
        """Let the entry rest until :meth:`resume`; ``note`` says why, ``by`` who did it.

        It is then not enabled, for RedBeat 2 as well, and stays so when a beat starts, also if it
        is in ``beat_schedule``, until it is changed there. Triggered runs are still sent. What else
        was changed here is not saved. Two round trips, more when others write to it meanwhile.
        """
        self._stands(pause_entries(store_of(self.app), [self._own_key()], note, by))

    def resume(self) -> None:
        """End a pause, or enable an entry that is disabled.

        Of the runs it missed one is made up for, unless the entry says otherwise. Two round trips,
        more when others write to it meanwhile.
        """
        store, keys = store_of(self.app), [self._own_key()]
        self._stands(resume_entries(store, keys, self.app, type(self)))

    def _stands(self, changed: Mapping[str, Texts]) -> None:
        """Take over what a pause changed; a change of somebody else's still is one."""
        texts = changed.get(self._own_key())
        if texts is None:
            raise KeyError(self.name)
        self._pause = Pause.read(texts[1])
        self.enabled = self._pause is None
        if self._seen_texts[0] and resumed(*self._seen_texts) == resumed(*texts):
            self._seen_texts = texts

    def trigger(self) -> str:
        """Have a beat send the task once, as soon as it can; return the task id.

        The message has the header ``triggered``, and ``scheduled_at`` is when this was called. The
        schedule, the last run and the run count are not touched, and a paused entry runs too. Each
        call is a run; at most 100 wait for a beat. Raises :exc:`InvalidEntryError` for more, and
        for an entry in quarantine. One round trip.
        """
        run_id, key = uuid.uuid4().hex[:12], self._own_key()
        code = store_of(self.app).trigger(key, run_id, MAX_TRIGGERS)
        if code == UNKNOWN:
            raise KeyError(self.name)
        if code == QUARANTINED:
            raise InvalidEntryError("name", f"{self.name!r} is in quarantine; repair it first")
        if code == TOO_MANY:
            problem = f"{MAX_TRIGGERS} runs of {self.name!r} wait already; is a beat at work?"
            raise InvalidEntryError("trigger", problem)
        if code == NOT_A_HASH:
            raise InvalidEntryError("name", not_an_entry(key))
        return self.task_id_of(run_id)

    def task_id_of(self, run: datetime | str) -> str:
        """Return the task id of the run that is due at an instant, or that has this trigger id."""
        given = (self.options or {}).get("task_id")
        if given:
            return str(given)
        if isinstance(run, datetime):
            return self.own_task_id(run)
        return self.derived_id(f"trigger {run}")

    def own_task_id(self, scheduled_at: datetime) -> str:
        """Return the task id of the run that is due at an instant, whatever the options say."""
        return self.derived_id(nominal(scheduled_at).iso)

    def derived_id(self, occurrence: str) -> str:
        """Return the task id of an occurrence: an instant in UTC, ISO 8601, or ``trigger <id>``."""
        # The id of a trigger is random, and known to objects that were never loaded.
        identity = "" if occurrence.startswith("trigger ") else self._identity
        return task_id_of(ensure_conf(self.app).key_prefix, str(self.name), occurrence, identity)

    @property
    def history(self) -> list[Occurrence]:
        """The last runs, the latest first; ``redbeat_history_size`` at most. One round trip."""
        size = ensure_conf(self.app).history_size
        lines, self._identity = store_of(self.app).history(self._own_key())
        return read_history(lines, self.own_task_id)[:size]

    @property
    def status(self) -> EntryStatus:
        """What state the stored entry is in, and why. One round trip."""
        page = store_of(self.app).read([self._own_key()])
        row: Any = page.rows[0]
        if row.definition is None and row.score is None:
            raise KeyError(self.name)
        cls: Any = type(self)
        return Record.read(row, str(self.name), page.now, self.app, cls).status(row)

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
        run, decision = self.run, self.decision()
        entry = self._copy()
        entry.last_run_at = last_run_at or (run.now if run else self.default_now())
        entry.scheduled_at = None if last_run_at else decision.anchor or decision.scheduled_at
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


def new_identity() -> str:
    """Return the identity of a new entry."""
    return token_urlsafe(6)


#: Entries and what is asked to be written of them, at most 500.
Batch = Sequence[tuple[RedBeatSchedulerEntry, Writing]]


def save_batches(store: Store, batches: Iterable[Batch]) -> None:
    """Write entries whose histories are valid; while Redis writes a batch the next is made ready.

    One round trip for each batch, and more as in :func:`save_batch`. Raises
    :exc:`InvalidEntryError`; then nothing is written of that batch, nor of those after it.
    """
    finish: Callable[[], None] | None = None
    for batch in batches:
        try:
            writings = ready(batch)
        finally:
            if finish is not None:
                finish()
        finish = partial(settle, store, batch, writings, store.begin_save_all(writings))
    if finish is not None:
        finish()


def save_batch(store: Store, asked: Batch, attempts: int = SAVE_ATTEMPTS) -> None:
    """Write entries whose histories are valid.

    One round trip, and one more when runs were recorded meanwhile, or when new objects change what
    is stored; some more where that goes on. Raises :exc:`InvalidEntryError`; then nothing is
    written.
    """
    writings = ready(asked, insist=not attempts)
    settle(store, asked, writings, partial(store.save_all, writings), attempts)


def ready(asked: Batch, insist: bool = False) -> list[Writing]:
    """Return what to write; with ``insist`` whatever history is stored."""
    now = datetime.now(UTC)  # once for all: in the zone of the app it takes a while
    return [entry._with_history(writing, now, insist) for entry, writing in asked]


def settle(
    store: Store,
    asked: Batch,
    writings: Sequence[Writing],
    answer: Callable[[], list[Saved]],
    attempts: int = SAVE_ATTEMPTS,
) -> None:
    """Take note of what became of each, and try those again that ran meanwhile."""
    tried = zip(asked, writings, answer(), strict=True)
    left = [item for item, writing, saved in tried if not item[0]._written(writing, saved)]
    if left and attempts:
        save_batch(store, left, attempts - 1)


# An attribute that is not set on an entry says nothing.
for _name in FIELDS:
    setattr(RedBeatSchedulerEntry, _name, getattr(DEFAULT, _name))
