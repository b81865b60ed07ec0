"""An entry has a definition, a policy and a run history."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta, tzinfo
from functools import partial
from inspect import signature
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from celery import Celery
from celery.beat import ScheduleEntry
from celery.schedules import crontab, schedstate

from redbeat import errors
from redbeat.calendar.walltime import END, TICK
from redbeat.calendar.zones import EPOCH, UTC, as_utc
from redbeat.codec.stored import bytes_of, text_of
from redbeat.codec.types import TAG
from redbeat.config import App, RedBeatConfig, ensure_conf, real_app
from redbeat.decoder import decode, decode_schedule, encode, to_timestamp
from redbeat.entries import decide, edits, saving, status
from redbeat.entries import definition as definitions
from redbeat.entries import history as histories
from redbeat.entries import policy as policies
from redbeat.entries.backfill import BACKFILL_RATE, Backfill, Planned
from redbeat.entries.calendars import load_calendars
from redbeat.entries.decide import DISABLED, PARKED, Decision, Expected, Plan, Run
from redbeat.entries.history import TRIGGERED, History, Occurrence, SavedState, Texts
from redbeat.entries.policy import DEFAULT, FIELDS, Policy, in_utc
from redbeat.entries.status import EntryStatus
from redbeat.errors import DecodeError, InvalidEntryError, TooManyStepsError
from redbeat.printing import get_logger
from redbeat.schedules.calendars import Calendar, Exclusion
from redbeat.schedules.next_run import asks_itself, in_zone
from redbeat.schedules.rule import RuleSchedule
from redbeat.storage.keys import check_destinations, layout_of
from redbeat.storage.store import store_of

__all__ = ("PARKED", "EntryArguments", "RedBeatSchedulerEntry", "is_redbeat_entry", "store_of")

logger = get_logger("celery.beat")

Self = TypeVar("Self", bound="RedBeatSchedulerEntry")

AHEAD: Final = timedelta(seconds=decide.CLOCK_STEP)

#: When ``is_due()`` of a disabled entry asks for the next check, in seconds.
DISABLED_RECHECK = 5.0

#: A subclass may add more fields.
META = ("last_run_at", "total_run_count")


if TYPE_CHECKING:
    # Programs for RedBeat 2, which has no types, neither check for None nor accept both types in
    # subclasses. So ``Any`` stands for None, too, in what they use most.
    Text: TypeAlias = Any
    from celery.schedules import BaseSchedule
    from typing_extensions import Unpack
else:
    Text = str | bytes


if TYPE_CHECKING:
    hideable = property
else:

    class hideable(property):  # noqa: N801 - a decorator
        """A property that an attribute of a subclass hides.

        Subclasses for RedBeat 2, which has no such properties, may have attributes of these names.
        In an entry of RedBeat's own class, such an attribute would have no effect.
        """

        def __set_name__(self, owner: type, name: str) -> None:
            super().__set_name__(owner, name)
            self.attribute = name

        def __get__(self, entry: Any, owner: Any = None) -> Any:
            if entry is not None and self.attribute in vars(entry):
                return vars(entry)[self.attribute]
            return super().__get__(entry, owner)

        def __set__(self, entry: Any, value: Any) -> None:
            if type(entry) is RedBeatSchedulerEntry:
                super().__set__(entry, value)  # raises AttributeError
            vars(entry)[self.attribute] = value


class EntryArguments(policies.Arguments, total=False):
    """The keyword arguments of :class:`RedBeatSchedulerEntry` that can follow ``options``.

    Annotate those that your subclass passes on with ``**fields: Unpack[EntryArguments]``, so that
    type checkers and editors know them.
    """

    app: App | None
    last_run_at: datetime | None
    total_run_count: int | None
    relative: bool
    one_off: bool


class RedBeatSchedulerEntry(policies.Attributes, ScheduleEntry):
    """A periodic task.

    Arguments:
        name: the name of the entry, converted with ``str()``. The Redis key is the key prefix plus
            the name.
        task: the name of the task to send.
        schedule: a number of seconds, a timedelta, a schedule object of Celery or RedBeat, or the
            JSON of one as a dict.
        args, kwargs: the arguments of the task.
        enabled: if False, the entry stays in Redis, but is never due.
        options: the options of ``apply_async``.
        app: the Celery app; None for the current app.
        last_run_at, total_run_count: the run history; a new entry has none, and counts from now.
        relative: whether an interval is rounded to its unit, as in Celery.
        one_off: ``True`` means ``max_runs=1``.

    All other arguments are the fields of a :class:`~redbeat.Policy`; ``None`` means the default.

    Creating an entry doesn't access Redis: change its attributes as you like, then store it with
    :meth:`save`. The constructor raises :exc:`InvalidEntryError` if ``schedule`` is not a valid
    schedule; ``save()`` checks all other arguments.
    """

    app: Any = None
    schedule: Any
    kwargs: dict[str, Any]
    options: dict[str, Any]
    enabled: bool = True
    #: When the entry last ran; None means that it never ran and is due now.
    last_run_at: datetime | Any
    total_run_count: int

    #: The nominal instant of the last run, None if unknown.
    nominal_at: datetime | None = None

    #: The run that a beat sends with this object; None in a program.
    run: Run | None = None

    #: Whether the time of the stored score has passed; ``is_due()`` may still return false.
    put_up = False

    #: Whether the entry comes from ``beat_schedule``. Only static entries may have lazy arguments.
    is_static = False

    #: What was stored when this object was last loaded or saved.
    saved_state = SavedState()

    #: Policy fields whose names a subclass uses for its own attributes or arguments.
    foreign_fields: frozenset[str] = frozenset()

    #: The entry's calendars by name; None until a decision loads them.
    _calendars: Mapping[str, Calendar] | None = None

    @policies.spelled_out(EntryArguments, relative=False, one_off=False)
    def __init__(
        self,
        name: str | None = None,
        task: str | None = None,
        schedule: float | timedelta | BaseSchedule | None = None,
        args: Iterable[Any] | None = None,
        kwargs: dict[str, Any] | None = None,
        enabled: bool = True,
        options: dict[str, Any] | None = None,
        **fields: Unpack[EntryArguments],
    ) -> None:
        clsargs: dict[str, Any] = {**fields}
        clsargs["app"] = real_app(clsargs.get("app"))
        if self.foreign_fields:
            # A field that a subclass passes to this constructor is RedBeat's after all.
            self.foreign_fields = self.foreign_fields.difference(clsargs)
        policy = {field: clsargs.pop(field, None) for field in FIELDS}
        if clsargs.pop("one_off", False):
            policy["max_runs"] = policy["max_runs"] or 1
        has_last_run = clsargs.get("last_run_at") is not None
        name, schedule = None if name is None else str(name), _given_schedule(schedule)
        try:
            super().__init__(
                name, task, schedule=schedule, args=args, kwargs=kwargs, options=options, **clsargs
            )
        except (AttributeError, ValueError, OverflowError) as error:
            problem = f"{schedule!r:.60} is not a schedule; use seconds, a crontab or an rrule"
            raise InvalidEntryError("schedule", problem) from error
        if not has_last_run and isinstance(self.schedule, RuleSchedule):
            self.last_run_at = self.schedule.counts_from(decide.aware(self.default_now()))
        self.enabled = enabled
        for field, value in policy.items():
            if value is not None:
                setattr(self, field, value)
        if self.timezone is not None:
            # Celery and Sentry read the time zone from the schedule.
            with suppress(InvalidEntryError):  # save() reports an unknown time zone
                zone: Any = Policy.of({"timezone": self.timezone}).zone
                self.schedule = in_zone(self.schedule, zone)
        # A last run that was passed counts as a change to save; the default one doesn't.
        self.saved_state = SavedState(last_run_at=None if has_last_run else self.last_run_at)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for base in _own_classes(cls):  # a mixin may also use the name of a policy field
            used_names = {*vars(base)}
            with suppress(KeyError, TypeError, ValueError):
                own = signature(vars(base)["__init__"])
                if own != signature(RedBeatSchedulerEntry.__init__):  # copied by functools.wraps
                    used_names |= {*own.parameters}
            cls.foreign_fields |= FIELDS.keys() & used_names

    # -- names ---------------------------------------------------------------------------------

    @staticmethod
    def generate_key(app: Any, name: str) -> str:
        """Return the Redis key of the entry called ``name``."""
        conf, text = ensure_conf(app), str(name)
        return conf.key_prefix + text if conf.shards == 1 else layout_of(conf).key_of(text)

    @property
    def key(self) -> str:
        """The Redis key of the entry."""
        if not self.name:
            raise InvalidEntryError("name", "is empty; give the entry a name")
        return self.generate_key(self.app, self.name)

    # -- loading -------------------------------------------------------------------------------

    @staticmethod
    def decode_definition(definition: Text) -> dict[str, Any]:
        """Return the constructor arguments in ``definition``; raises :exc:`DecodeError`."""
        return definitions.decode_definition(definition)

    @staticmethod
    def decode_meta(meta: Text | None, app: Any = None) -> dict[str, Any]:  # noqa: ARG004
        """Return the run history in ``meta``; raises :exc:`DecodeError` if it is invalid.

        If it is empty, ``last_run_at`` is None. ``app`` has no effect, as in RedBeat 2.
        """
        return histories.decode_meta(meta)

    @staticmethod
    def load_definition(
        key: Text, app: Any = None, definition: Text | None = None
    ) -> dict[str, Any]:
        """Return the stored constructor arguments of an entry. One round trip.

        Raises KeyError if Redis has no definition under ``key``.
        """
        if definition is None:
            definition = saving.read_row(store_of(real_app(app)), text_of(key)).definition
        if definition is None:
            raise KeyError(key)
        return definitions.decode_definition(definition)

    @staticmethod
    def load_meta(key: Text, app: Any = None) -> dict[str, Any]:
        """Return the stored run history of an entry. One round trip.

        ``last_run_at`` is None if nothing is stored.
        """
        row = saving.read_row(store_of(real_app(app)), text_of(key))
        return histories.decode_meta(row.meta or "")

    @classmethod
    def from_key(cls: type[Self], key: Text, app: Any = None) -> Self:
        """Load the entry that is stored under the Redis key ``key``. One round trip.

        Raises KeyError if the key does not exist, and :exc:`DecodeError` if the entry cannot be
        decoded.
        """
        app = real_app(app)
        entry: Self = saving.load(store_of(app), app, text_of(key), cls)
        return entry

    @classmethod
    def from_definition(cls: type[Self], app: Celery, definition: str, policy: str = "") -> Self:
        """Create an entry without run history. No round trip.

        Raises :exc:`DecodeError`, or its subclass :exc:`UnknownTypeError` if another process may be
        able to load the entry.
        """
        stored = _decoded(cls, "definition", definition)
        arguments = definitions.decode_policy(policy, stored, cls.foreign_fields)
        try:
            entry = cls(app=app, **arguments)
            entry.saved_state = entry.saved_state._replace(texts=(definition, policy))
            return entry
        except Exception as error:
            # From a schedule, or from a class whose constructor does not accept an argument.
            is_invalid = isinstance(error, InvalidEntryError)
            kind = DecodeError if is_invalid else errors.UnknownTypeError
            raise kind(*_refusal(cls.__name__, arguments, error)) from error

    @classmethod
    def overrides(cls, *names: str) -> bool:
        own = () if cls is RedBeatSchedulerEntry else _own_classes(cls)
        return any(name in vars(base) for base in own for name in names)

    @property
    def seen_texts(self) -> Texts:
        return self.saved_state.texts

    @property
    def rank(self) -> int | Any:
        """The position of the entry in due order, None if it is not scheduled. One round trip."""
        return store_of(self.app).rank(self.key)

    # -- history and time -------------------------------------------------------------------------

    def policy_field(self, name: str) -> Any:
        """Return the default if a subclass uses the name for something else."""
        return getattr(DEFAULT if name in self.foreign_fields else self, name)

    def _current_time(self) -> datetime:
        """In UTC; by the host's clock if the schedule's returns naive times."""
        now: datetime = self.default_now()
        return datetime.now(UTC) if now.tzinfo is None else as_utc(now)

    def recall(self, meta: str, identity: str | None = None) -> None:
        """Load a stored history; raises :exc:`DecodeError`. No round trip.

        Without an ``identity``, that of this object stays. Any further fields that a subclass's
        ``decode_meta()`` returns become attributes.
        """
        if not self.overrides("decode_meta"):
            history = History.read(meta)
        else:
            fields = _decoded(self, "meta", meta or None)
            history = History.of_meta(fields)
            for name in fields.keys() - META:
                setattr(self, name, fields[name])
        self.adopt(history, identity)

    def adopt(self, history: History, identity: str | None = None) -> None:
        last, count, self.nominal_at = history
        self.last_run_at, self.total_run_count = last, count
        if identity is None:
            identity = self.saved_state.identity
        self.saved_state = self.saved_state._replace(
            last_run_at=last, total_run_count=count, identity=identity
        )

    @property
    def anchor(self) -> datetime | None:
        """The instant (UTC) from which the next run is computed, None if the entry never ran."""
        last, known = self.last_run_at, self.saved_state.last_run_at
        if last is None:
            return None
        if self.nominal_at and decide.same_instant(last, known):
            return self.nominal_at
        return decide.aware(last)

    def ran_after(self, now: datetime) -> bool:
        """Whether a beat sent or skipped a run after ``now``, because Redis's clock was ahead.

        A last run that a program has written does not count.
        """
        last, scheduled_at = self.last_run_at, self.nominal_at
        if last is None or scheduled_at is None:
            return False
        is_ahead = max(decide.aware(last), scheduled_at) > now + AHEAD
        return is_ahead and decide.same_instant(last, self.saved_state.last_run_at)

    def decision(self) -> Decision:
        run = self.run
        if run is None:
            return self.decision_at(self._current_time())
        if run.decision is None:
            run.decision = self.decision_at(run.now, run.due)
        return run.decision

    def lateness_of(self, run: Occurrence) -> float:
        """Return how late a run of the :attr:`history` was, in seconds.

        The offsets of ``spread`` and ``jitter`` don't count.
        """
        due_at = run.scheduled_at
        offsets = self.policy_field("spread") or self.policy_field("jitter")
        if offsets and run.outcome != TRIGGERED and not asks_itself(self.schedule):
            with suppress(TooManyStepsError):
                offset_due_at = self.plan_without_calendars().due_at(due_at)
                due_at = min(offset_due_at, max(run.dispatched_at, due_at))
        return (run.dispatched_at - due_at).total_seconds()

    @hideable
    def policy(self) -> Policy:
        """The policy that the attributes of the entry define.

        Raises :exc:`InvalidEntryError` for an invalid one.
        """
        return self.effective_policy

    @hideable
    def scheduled_at(self) -> datetime | None:
        """The nominal instant of the last run, None if unknown."""
        return self.nominal_at

    @property
    def effective_policy(self) -> Policy:
        attributes = self.__dict__
        if FIELDS.keys().isdisjoint(attributes):
            return DEFAULT
        names = FIELDS.keys() & attributes.keys() - self.foreign_fields
        return Policy.of({name: attributes[name] for name in FIELDS if name in names})

    def decision_at(self, now: datetime, due: datetime | None = None) -> Decision:
        """``now`` is in UTC; ``due``, by default ``now``, is when the entry became due."""
        plan, runs = self.occurrence_plan(), self.total_run_count
        return decide.decide(plan, self.last_run_at, self.anchor, now, due or now, runs)

    def plan_without_calendars(self) -> Plan:
        """Plan the entry's occurrences, without the exclusion of days.

        A crontab without ``misfire_grace_time`` uses the app's ``beat_cron_starting_deadline``.
        Raises :exc:`InvalidEntryError` for an invalid policy. No round trip.
        """
        return plan_of(self.app, self.schedule, self.effective_policy, str(self.name))

    def occurrence_plan(self) -> Plan:
        """Plan the entry's occurrences.

        Raises :exc:`InvalidEntryError` for an invalid policy or a missing calendar. One round trip
        if the entry has calendars that were not loaded.
        """
        plan = self.plan_without_calendars()
        names = plan.policy.exclude
        if not names:
            return plan
        if self._calendars is None:
            self._calendars = load_calendars(store_of(self.app), names)
        try:
            calendars = [self._calendars[name] for name in names]
        except KeyError as error:
            problem = f"there is no calendar {error}; save the calendar first, or correct the name"
            raise InvalidEntryError("exclude", problem) from error
        plan.exclusion = Exclusion(calendars, plan.zone or UTC, plan.policy.on_excluded)
        return plan

    def use_calendars(self, calendars: Mapping[str, Calendar] | None) -> None:
        """None makes the next decision load the calendars."""
        self._calendars = calendars

    @hideable
    def runs_left(self) -> int | None:
        """How many runs ``max_runs`` still allows, None without a limit."""
        most = self.effective_policy.max_runs
        return None if most is None else max(most - self.total_run_count, 0)

    @hideable
    def spread_offset(self) -> float:
        """The seconds by which ``spread`` delays the next run.

        It's 0 for a schedule class with its own ``is_due``, which decides itself when it is due.
        """
        if not self.policy_field("spread") or asks_itself(self.schedule):
            return 0.0
        plan, now = self.plan_without_calendars(), self._current_time()
        plan.policy = replace(plan.policy, jitter=0.0)
        try:
            nominal = plan.next_run(now) or now
            return (plan.due_at(nominal) - nominal).total_seconds()
        except TooManyStepsError:
            return 0.0

    def upcoming(self, n: int = 10, after: datetime | None = None) -> list[datetime]:
        """Return when the next ``n`` runs after ``after`` (default: now) are due, in UTC.

        A run is due at its nominal instant plus the offsets of ``spread`` and ``jitter``. The list
        is shorter if the entry has fewer runs left. For a disabled entry, these are the runs that
        it would have. If the schedule's class has its own ``is_due``, its ``remaining_estimate``
        computes the instants; without one, the list has only the next instant.
        """
        since = in_utc("after", after) if after else self._current_time()
        return [run.due_at for run in islice(self.due_after(since), n)]

    def due_after(self, instant: datetime) -> Iterator[Expected]:
        """Yield the runs that are due after ``instant``, an aware datetime, in order of time.

        If ``spread`` or ``jitter`` delays a run beyond ``instant``, its nominal instant may have
        passed.
        """
        since, anchor = max(as_utc(instant), EPOCH), self.anchor
        now, asks = datetime.now(UTC), asks_itself(self.schedule)
        if anchor is not None and anchor > max(since, now) and not (asks or self.ran_after(now)):
            since = anchor + TICK  # a program has set the last run in the future
        if not asks and (self.policy_field("spread") or self.policy_field("jitter")):
            plan = self.occurrence_plan()
            first = plan.first_occurrence(since) if anchor is None else plan.after(anchor)
            later = min(since, END - TICK) + TICK
            pending = None if first is None else plan.first_due_since(first, later)
            if pending is not None and pending <= since:
                since = pending
            elif anchor == since:
                since += TICK
        return (run for run in self.runs_from(since) if run.due_at > instant)

    def runs_from(self, since: datetime, now: datetime | None = None) -> Iterator[Expected]:
        """Yield the runs that a punctual beat sends at ``since``, an aware datetime, and later.

        Each run is computed as if the previous ones had taken place. Those between ``now`` and
        ``since`` count towards ``max_runs``, too.
        """
        since, anchor = as_utc(since), self.anchor
        plan = self.occurrence_plan()
        if not asks_itself(self.schedule):
            yield from decide.runs_from(plan, anchor, self.total_run_count, since, now or since)
            return
        begin = min(anchor or since, since)
        try:
            for at in islice(plan.estimates(begin, since), self.runs_left):
                yield Expected(at, at)
        except NotImplementedError:
            next_at = self.decision().next_at
            if next_at is not None and next_at > since and self.runs_left != 0:
                yield Expected(next_at, next_at)

    def occurrences_from(self, since: datetime) -> Iterator[datetime]:
        """Yield nominal instants at ``since`` and later, ignoring ``max_runs``.

        Raises :exc:`InvalidEntryError` for a schedule class with its own ``is_due``.
        """
        return self.occurrence_plan().occurrences_from(self.anchor, since)

    def created_at(self: Self, instant: datetime) -> Self:
        entry = copy.copy(self)
        entry.adopt(History(decide.counts_from(self.schedule, instant)))
        return entry

    def is_due(self) -> schedstate | Any:
        """Return whether the entry is due, and the seconds until the next run.

        The number of seconds is None if no run is left.
        """
        if not self.enabled:
            return schedstate(False, DISABLED_RECHECK)
        decision = self.decision()
        if decision.next_at is None:
            return schedstate(decision.due, None)
        now = self.run.now if self.run else self._current_time()
        return schedstate(decision.due, max((decision.next_at - now).total_seconds(), 0.0))

    @property
    def due_at(self) -> datetime | Any:
        """The time of the next run in UTC, now if a run is due, None if no run is left."""
        decision = self.decision()
        return self._current_time() if decision.due else decision.next_at

    @property
    def score(self) -> float:
        """The next run in UNIX seconds; -1 if no run is left, -2 if the entry is disabled."""
        if not self.enabled:
            return DISABLED
        due_at = self.due_at
        return PARKED if due_at is None else to_timestamp(due_at)

    def score_to_store(self, now: datetime | None = None) -> float | None:
        """The score to store in UNIX seconds, None to make the entry due at once.

        ``now`` is in UTC, by default the current time. An entry with its own clock ignores it. This
        host's clock may be wrong, so the score is also None if the entry seems finished, its run
        too late, or its last run in the future: then a beat decides by Redis's clock.
        """
        if not self.enabled:
            return DISABLED
        if self.overrides("score", "due_at"):
            return self.score
        if now is None or decide.has_clock(self.schedule) or self.overrides("default_now"):
            clock = self._current_time()
            if now is None or decide.is_own_time(clock):
                now = clock
        decision = self.decision_at(now)
        if self.ran_after(now):
            return None
        if decision.due or decision.missed or decision.next_at is None:
            return None
        return decide.score_of(decision.next_at)

    # -- saving --------------------------------------------------------------------------------

    def definition(self) -> dict[str, Any]:
        """Return the definition to store; a subclass can add arguments to it."""
        return {field: getattr(self, field) for field in definitions.FIELDS}  # in RedBeat 2's order

    def texts(self) -> tuple[str, str]:
        """The definition and the policy as JSON; raises :exc:`InvalidEntryError`."""
        if self.name:
            self.writable_key()
        policy = self.effective_policy
        if not getattr(self.app, "redbeat_tracks_runs", False) and policy.field_of_reports:
            problem = "needs workers that report ends of runs; call redbeat.worker.enable(app)"
            raise InvalidEntryError(policy.field_of_reports, problem)
        definitions.check_excluded(self.schedule, policy)
        self.check_allowed()
        text = definitions.encode_definition(type(self).definition(self), self.is_static)
        check_destinations(self.app, self.options)
        return text, definitions.encode_policy(self.schedule, policy)

    def checked_texts(self) -> Texts:
        """Make the checks of :meth:`save`; raises :exc:`InvalidEntryError`."""
        texts = self.texts()
        saving.check_history(self)
        definitions.warn_if_too_short(self.name, self.schedule)
        if decide.has_start(self.schedule) and not self.policy_field("exclude"):
            self.decision()  # raises for a rule that takes too long to compute
        return texts

    def check_allowed(self) -> None:
        check_allowed(ensure_conf(self.app), self.task, self.options)

    def writable_key(self) -> str:
        """Return the key, if an entry can have it.

        Raises :exc:`InvalidEntryError` if RedBeat itself uses it, or if UTF-8 cannot encode it.
        """
        key = self.key
        check_key(ensure_conf(self.app), self.name, key)
        return key

    if TYPE_CHECKING:
        # Subclasses for RedBeat 2 define ``def save(self)``, which type checkers then accept.
        def save(self: Self, *args: Any, **kwargs: Any) -> Self: ...

    else:

        def save(self, if_unchanged: bool = False) -> Self:
            """Store the entry in Redis and return it; beats use the stored entry at once.

            The last writer wins, but runs that a beat recorded after you created or loaded the
            entry are kept, unless you changed ``last_run_at`` or ``total_run_count``. A save that
            raises :exc:`InvalidEntryError` writes nothing. Takes one round trip, one more for each
            run that a beat records during the save, and one more if a new object replaces a stored
            entry.

            A finished entry runs again if you changed its schedule, time zone, start time, end
            time, ``max_runs`` or history. If an enabled entry is still finished after a save, a
            warning is logged. Raises :exc:`ConflictError` if others change the entry during each of
            20 tries.

            With ``if_unchanged``, the first writer wins: :exc:`ConflictError` is raised if another
            program changed or deleted the entry after you loaded it, or if the name of a new entry
            exists already. Recorded runs don't count.
            """
            saving.save(store_of(self.app), [self], if_unchanged=if_unchanged)
            return self

    def delete(self) -> None:
        """Remove the entry and its history from Redis. One round trip.

        Only the name of the entry matters. Raises :exc:`InvalidEntryError` if RedBeat itself uses
        the entry's key.
        """
        edits.delete(store_of(self.app), [self.writable_key()])
        self.saved_state = self.saved_state._replace(new_identity="")

    def history_text(self) -> str:
        return histories.encode_meta(self.last_run_at, self.total_run_count or None)

    def warn_if_finished(self) -> None:
        if not self.enabled:
            return
        finished, anchor = self.runs_left == 0, self.anchor
        if not (finished or anchor is None or asks_itself(self.schedule)):
            finished = self.occurrence_plan().after(anchor) is None
        if finished:
            logger.warning(
                "Entry %s stays finished: nothing is left to run. To run the entry again, save it "
                "with another schedule, max_runs or last_run_at, or with total_run_count = 0",
                self.name,
            )

    # -- operating --------------------------------------------------------------------------------

    def pause(self, note: str | None = None, by: str | None = None) -> None:
        """Pause the entry until :meth:`resume`; ``note`` says why, ``by`` who did it.

        Pausing sets ``enabled`` to false, which RedBeat 2 respects too. An entry of
        ``beat_schedule`` stays paused when beat restarts, unless you changed it there. Triggered
        runs are sent all the same. Attributes that you changed aren't saved. Raises KeyError if
        the entry doesn't exist. Takes two round trips, and tries again if another program writes
        the entry at the same time.
        """
        edits.pause_entry(store_of(self.app), self, note, by)

    def resume(self) -> None:
        """End a pause, or enable a disabled entry.

        If it missed runs, it runs once to catch up; ``coalesce`` and ``misfire_grace_time`` can
        change that. Raises KeyError if the entry doesn't exist. Takes two round trips, and tries
        again if another program writes the entry at the same time.
        """
        edits.resume_entry(store_of(self.app), self)

    def trigger(self) -> str:
        """Ask for one run now, in addition to the schedule; return its task id.

        The message has the header ``triggered``, and the time of the request as ``scheduled_at``. A
        triggered run doesn't change the entry's schedule, last run or run count, and the entry may
        be paused. At most 100 triggered runs of an entry can wait for a beat, and some hundreds for
        an earlier run. Raises KeyError if the entry doesn't exist, and :exc:`InvalidEntryError` if
        too many triggered runs are waiting or if the entry is quarantined. One round trip.
        """
        return edits.request_run(store_of(self.app), self)

    def backfill(
        self,
        since: datetime,
        until: datetime,
        rate: float = BACKFILL_RATE,
        again: bool = False,
        dry_run: bool = False,
    ) -> Planned:
        """Ask for the runs of a time span that weren't sent; return the plan.

        A beat sends one message for each nominal instant from ``since`` to before ``until``, with
        the task id that a scheduled run at this instant would have. It sends at most ``rate``
        backfilled runs per second, and scheduled runs first. The entry's last run, run count and
        next run stay.

        Runs that the history reports as sent are left out, and those in the spans of earlier
        backfills; with ``again``, only of unfinished ones. A backfill ends at the entry's last run,
        because the schedule itself sends later ones. With ``dry_run``, nothing is written.

        A naive datetime counts as UTC. Raises KeyError if the entry does not exist, and
        :exc:`InvalidEntryError` for an invalid span or rate, for more than 100,000 runs, for a
        schedule class with its own ``is_due``, or if the entry is quarantined. Takes three round
        trips, two with ``dry_run``, and three more for each run that a beat records at the same
        time.
        """
        store = store_of(self.app)
        return edits.request_backfill(
            store, self, since, until, rate=rate, again=again, dry_run=dry_run
        )

    def cancel_backfill(self) -> list[Backfill]:
        """Cancel the backfilled runs that aren't sent yet; return the backfills that had some.

        Raises KeyError if the entry doesn't exist. Takes two round trips, and two more for each
        run that a beat records at the same time.
        """
        return edits.cancel_backfills(store_of(self.app), self)

    @hideable
    def backfills(self) -> list[Backfill]:
        """The backfills of the entry and their progress. One round trip.

        A new request combines finished ones whose spans overlap or touch. Raises KeyError if the
        entry does not exist.
        """
        return edits.stored_backfills(store_of(self.app), self)

    def task_id_of(self, run: datetime | str) -> str:
        """``run`` is the run's nominal instant or its trigger id."""
        fixed_id = (self.options or {}).get("task_id")
        return str(fixed_id) if fixed_id else self.own_task_id(run)

    def own_task_id(self, run: datetime | str) -> str:
        """The id that a run has without a fixed one in ``options``."""
        if isinstance(run, datetime):
            occurrence, identity = decide.aware(run).isoformat(), self.saved_state.identity
        else:
            # An entry that was never loaded has no identity; a trigger's random id is enough.
            occurrence, identity = f"trigger {run}", ""
        prefix = ensure_conf(self.app).key_prefix
        return decide.task_id_of(prefix, str(self.name), occurrence, identity)

    @hideable
    def history(self) -> list[Occurrence]:
        """The last ``redbeat_history_size`` runs of the entry, latest first.

        Takes one round trip, and two more if workers report the ends of runs but the end of a
        listed run has not been reported yet.
        """
        return status.history_of(self)

    @hideable
    def status(self) -> EntryStatus:
        """The state of the stored entry. One round trip.

        Raises KeyError if the entry does not exist.
        """
        page = store_of(self.app).read([self.writable_key()])
        row: Any = page.rows[0]
        if row.definition is None and not row.score:
            raise KeyError(self.name)
        load = partial(saving.entry_of, app=self.app, entry_class=type(self))
        record = status.record_of(row, str(self.name), page.now, load)
        return status.status_of(record, row)

    # -- running -------------------------------------------------------------------------------

    def reschedule(self, last_run_at: datetime | None = None) -> None:
        """Set the last run to ``last_run_at`` (default: now), from which the next run is computed.

        If the entry has reached ``max_runs``, its run count restarts at 0. If it was deleted,
        nothing is written. Takes two round trips, and one more for each run that a beat records
        during the write.
        """
        self.last_run_at = last_run_at or self.default_now()
        self.nominal_at = None
        saving.check_history(self)
        saving.reschedule(store_of(self.app), self)

    def _next_instance(
        self: Self, last_run_at: datetime | None = None, only_update_last_run_at: bool = False
    ) -> Self:
        """Count a run; one that no beat sends is recorded here, in two round trips."""
        run, decision, entry = self.run, self.decision(), self.__copy__()
        ran_at = last_run_at or (run.now if run else self.default_now())
        nominal = None if last_run_at else decision.anchor or decision.scheduled_at
        count = self.total_run_count + (not only_update_last_run_at)
        entry.adopt(History(ran_at, count, nominal))
        if run is None:
            saving.reschedule(store_of(entry.app), entry, wins=True)
        else:
            run.successor = entry
        return entry

    __next__ = next = _next_instance

    # -- copying and pickling -------------------------------------------------------------------

    def __copy__(self: Self) -> Self:
        cls = type(self)
        entry = cls.__new__(cls)
        entry.__dict__ = {**self.__dict__, "run": None}
        return entry

    def __deepcopy__(self: Self, memo: dict[int, Any]) -> Self:
        """The copy has its own arguments and options, but shares the app and schedule."""
        entry = copy.copy(self)
        for name in ("args", "kwargs", "options"):
            setattr(entry, name, copy.deepcopy(getattr(self, name), memo))
        return entry

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """Yield (name, value) for each constructor argument, as Celery's entries do."""
        internal = ("run", "nominal_at", "put_up", "saved_state", "is_static")
        return (
            (name, value)
            for name, value in vars(self).items()
            if name not in internal and not name.startswith("_")
        )

    def __reduce__(self) -> tuple[Any, ...]:
        state = {name: value for name, value in vars(self).items() if name not in ("app", "run")}
        return object.__new__, (type(self),), state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A pickled entry becomes an entry of the current app."""
        self.__dict__.update(state, app=real_app())

    def __repr__(self) -> str:
        return f"{super().__repr__()}>"  # Celery's has no closing bracket


def _own_classes(entry_class: type) -> list[type]:
    return [base for base in entry_class.__mro__ if base not in RedBeatSchedulerEntry.__mro__]


def is_redbeat_entry(entry: Any) -> bool:
    """It may also be Celery's or a mock."""
    return issubclass(type(entry), RedBeatSchedulerEntry)


def plan_of(app: Any, schedule: BaseSchedule, policy: Policy, name: str) -> Plan:
    zone = (None if policy is DEFAULT else policy.zone) or _zone_of(app)
    if isinstance(schedule, crontab) and policy.misfire_grace_time is None:
        deadline = ensure_conf(app).cron_deadline
        if deadline is not None:
            policy = replace(policy, misfire_grace_time=deadline)
    return Plan(schedule, zone, policy, name)


def check_key(conf: RedBeatConfig, name: Any, key: str) -> None:
    # The default lock key is refused even if the lock is off: another app may use it.
    reserved = (*conf.reserved_keys, conf.lock_key, f"{conf.key_prefix}:lock")
    if key in reserved or f"{conf.key_prefix}{name}" in reserved:
        raise InvalidEntryError(
            "name", f"{name!r} is a key that RedBeat uses itself; use another name"
        )
    try:
        bytes_of(key)
    except UnicodeEncodeError as error:
        problem = f"{name!r} cannot be written as UTF-8; use another name"
        raise InvalidEntryError("name", problem) from error


def check_allowed(conf: RedBeatConfig, task: str, options: Mapping[str, Any]) -> None:
    """Raise :exc:`NotAllowedError` for a task outside ``redbeat_task_allowlist``."""
    allowlist = conf.task_allowlist
    refused = allowlist and allowlist.refusal(task, options)
    if refused:
        raise errors.NotAllowedError(*refused)


def _zone_of(app: Any) -> tzinfo:
    # UTC for a mock or no app. Celery caches the time zone in the app; its property
    # ``app.timezone`` takes 1 us longer.
    zone = (vars(app).get("timezone") or app.timezone) if app else None
    return zone if isinstance(zone, tzinfo) else UTC


def _given_schedule(schedule: Any) -> Any:
    """Programs also pass the JSON of a schedule, as a dict."""
    if not isinstance(schedule, dict) or TAG not in schedule:
        return schedule
    try:
        return decode_schedule(decode(encode(schedule, "schedule"), "schedule"), "schedule")
    except DecodeError as error:
        raise InvalidEntryError(error.field, error.problem) from error


def _decoded(owner: Any, field: str, text: str | None) -> dict[str, Any]:
    """A subclass may override the method, so any of its errors becomes a :exc:`DecodeError`."""
    method = getattr(owner, f"decode_{field}")
    try:
        return dict(method(text))
    except DecodeError:
        raise
    except Exception as error:
        cls = owner if isinstance(owner, type) else type(owner)
        problem = f"decode_{field}() of {cls.__name__} raised {errors.described(error)}"
        raise errors.UnknownTypeError(field, problem) from error


def _refusal(class_name: str, arguments: Collection[str], error: Exception) -> tuple[str, str]:
    if isinstance(error, TypeError):
        for name in arguments:
            if f"argument '{name}'" in str(error):
                hint = errors.did_you_mean(name, (*definitions.FIELDS, *FIELDS))
                return f"definition.{name:.60}", f"is an unknown field of {class_name}; {hint}"
    return "definition", f"{class_name} refuses the arguments: {error}"
