"""The one room that calls what users override in sending. Plain runs never enter it.

It also sends single entries, for programs with a ``tick`` or a mapping of entries of their own.
"""

from __future__ import annotations

import copy
import math
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

from celery import Celery, Task
from kombu.messaging import Producer
from redis.exceptions import RedisError

from redbeat.beat.broker import impossible
from redbeat.beat.trouble import should_log
from redbeat.calendar.zones import from_timestamp
from redbeat.codec.stored import instant_in, text_of
from redbeat.config import key_aside
from redbeat.entries import decide
from redbeat.entries.history import History
from redbeat.entries.run import FIRST, Rule, Run
from redbeat.entries.state import SCHEDULED
from redbeat.entry import RedBeatSchedulerEntry, is_redbeat_entry
from redbeat.errors import CannotRunHereError, RedBeatError, described
from redbeat.printing import get_logger
from redbeat.storage.commands import ask, ask_aside
from redbeat.storage.reading import read_rows
from redbeat.storage.rows import Look, Row
from redbeat.storage.store import Store
from redbeat.storage.words import INBOX

if TYPE_CHECKING:
    from .beat import Beat

logger = get_logger("celery.beat")

#: The methods that take part in sending a run.
TICK: Final = "tick"
OF_SCHEDULER: Final = (
    *(TICK, "maybe_due", "is_due", "apply_async", "reserve", "send_task", "send_if_due"),
)
OF_ENTRY: Final = ("is_due", "__next__", "next", "_next_instance")
APPLY: Final = "apply_async"

#: The methods of an entry class that have a say in when its entries are due.
DECIDING: Final = ("is_due", "decode_meta", "from_key")
CELERYS: Final = Task.apply_async

#: Whose code a method is.
OURS, LIBRARY, USER = "ours", "library", "user"

#: The module of RedBeat's scheduler class, which imports this one.
SCHEDULERS: Final = "redbeat.schedulers"

#: Directories of installed packages.
INSTALLED: Final = frozenset({"site-packages", "dist-packages"})

#: The packages whose schedules decide as RedBeat's own functions do.
KNOWN_PACKAGES: Final = frozenset({"celery", "redbeat"})

#: The attributes in which properties, methods and partial functions hold their function.
HOLDS: Final = ("fget", "__func__", "func")

#: Maximum number of wrappers around a method.
MOST_WRAPPERS: Final = 20

#: Maximum number of entry objects that are kept to be copied.
MOST_ENTRIES: Final = 1000

#: The seconds to wait for an entry that cannot say when it is due, or was not looked at.
AGAIN: Final = 1.0

#: The error about an entry of another class whose ``is_due()`` raises.
NOT_AN_ENTRY: Final = (
    "beat: Entry %s of the schedule does not run: is_due() of class %s raised %s. An entry must be "
    "a RedBeatSchedulerEntry, or a ScheduleEntry of Celery"
)


# -- whose code it is ------------------------------------------------------------------------------


def _files_of(value: Any) -> Iterator[str]:
    """Yield the source files of a callable or property: the outermost wrapper's first.

    A wrapper made by ``functools.wraps`` has the name and module of what it wraps, so only its code
    object says where it comes from.
    """
    for _ in range(MOST_WRAPPERS):
        if value is None:
            return
        if hasattr(type(value), "_self_wrapper"):  # wrapt, also the copies of it in other packages
            yield from _files_of(getattr(value, "_self_wrapper", None))
            value = value.__wrapped__
            continue
        held = next((name for name in HOLDS if hasattr(value, name)), "")
        if held:
            value = getattr(value, held)
            continue
        code = getattr(value, "__code__", None)
        yield _file_of_class(value) if code is None else code.co_filename
        value = getattr(value, "__dict__", {}).get("__wrapped__")


def _file_of_class(value: Any) -> str:
    cls = value if isinstance(value, type) else type(value)
    return getattr(sys.modules.get(cls.__module__), "__file__", None) or ""


def _whose(value: Any, base: type) -> str:
    """Return whose code ``value`` is, which stands in a class that is not the user's.

    That code is either ours or Celery's, or somebody replaced it.
    """
    own_files = {_file_of_class(cls) for cls in base.__mro__}
    files = [file for file in _files_of(value) if file not in own_files]
    if not files:
        return OURS
    installed = all(INSTALLED.intersection(PurePath(file).parts) for file in files)
    return LIBRARY if installed else USER


def _own_base(kind: type) -> type:
    """Return RedBeat's scheduler class, of which ``kind`` is a subclass, or ``kind`` itself."""
    return next((cls for cls in kind.__mro__ if cls.__module__ == SCHEDULERS), kind)


def judge(cls: type, name: str, base: type) -> str:
    """Return whose code the method ``name`` of ``cls`` is, a subclass of ``base``.

    What a subclass overrides is the user's, wherever it lives. What somebody put into ``base`` or
    its bases is a library's if all its code lives in installed packages (Sentry, OpenTelemetry),
    else the user's.
    """
    for owner in cls.__mro__:
        if name in vars(owner):
            value = vars(owner)[name]
            if owner in base.__mro__:
                return _whose(value, base)
            return OURS if value is getattr(base, name, None) else USER
    return OURS


def _overridden(cls: type, names: tuple[str, ...], base: type) -> str:
    """Return the first method that is the user's, as ``Class.method``; "" if there is none."""
    for name in names:
        if judge(cls, name, base) == USER:
            owner = next(owner for owner in cls.__mro__ if name in vars(owner))
            return f"{owner.__name__}.{name}"
    return ""


# -- calling it ------------------------------------------------------------------------------------


@dataclass(slots=True)
class OwnCall:
    """One call of users' code: a callable for ``Sender.publish`` and ``OneStep.capture``.

    ``call()`` returns what ``apply_async`` returned, or None if nothing is known about an id.

    Attributes:
        run: the decided run.
        entry: the entry object for the users' code.
        part: the part that the entry takes in the run, which is ``entry.run``.
        options: the arguments of ``maybe_due`` of a program's own tick, else None.
        watched: whether only a message that this process sees counts as sent, because the task has
            an own ``apply_async``, which may send none. Else what the scheduler's code sent is
            sent: its ``send_task`` may publish elsewhere.
        seconds: what ``maybe_due`` returned, the seconds until the next run.
        declined: whether users' code said that the entry is not due now: if nothing left, the
            occurrence is not used up, and :attr:`score` says when to look again.
        score: the next score that users' code wants (an entry class with its own ``is_due``,
            ``score`` or ``due_at``), UNIX seconds, < 0 parked; None: the verdict's score holds.
        meta: the history that users' code made (``reserve``, ``next``), as JSON for ``meta``; None:
            the verdict's holds.
    """

    scheduler: Any
    run: Run
    entry: RedBeatSchedulerEntry
    part: decide.Run
    producer: Any
    options: Mapping[str, Any] | None
    watched: bool
    seconds: Any = None
    declined: bool = False
    score: float | None = None
    meta: str | None = None

    @property
    def sent(self) -> bool:
        """Whether the run counts as sent although no message was seen."""
        return not self.watched and (self.part.sent or self.part.successor is not None)

    def __call__(self) -> Any:
        """Call ``maybe_due`` of the scheduler, or ``apply_async`` for a triggered run."""
        entry, send, result = self.entry, self.run.send, None
        if send.kind != SCHEDULED:
            result = self.scheduler.apply_async(entry, producer=self.producer, advance=False)
        elif self.options is None:
            self.seconds = self.scheduler.maybe_due(entry, producer=self.producer)
        else:
            options = {"producer": self.producer, **self.options}
            self.seconds = self.scheduler.send_if_due(entry, **options)
        if self.part.error is not None:
            raise self.part.error
        if send.kind == SCHEDULED:
            self._take_back()
        return result

    def _take_back(self) -> None:
        """Take what the users' code decided about the next run."""
        successor = self.part.successor
        self.declined = not self.part.sent and successor is None
        self.score = self._own_score()
        is_plain = type(self.entry) is type(successor) is RedBeatSchedulerEntry
        if isinstance(successor, RedBeatSchedulerEntry) and not is_plain:
            self.meta = successor.history_text()

    def _own_score(self) -> float | None:
        """Return the score that users' code wants, None if the schedule determines it.

        None as well if both are almost the same.
        """
        entry, part, seconds = self.entry, self.part, self.seconds
        if part.successor is not None and entry.scores_itself():
            return self._score_of(part.successor)
        asked = judge(type(entry), "is_due", RedBeatSchedulerEntry) == USER
        if not (asked or self.declined):
            return None
        if seconds is None:
            return decide.PARKED if self.declined else None
        number = seconds if isinstance(seconds, (int, float)) else math.nan
        score = self.run.now + decide.wait_of(number).total_seconds()
        planned = part.decision and decide.score_of(part.decision.next_at)
        is_near = planned is not None and abs(score - planned) < decide.SHORTEST_WAIT
        return None if is_near and not self.declined else score

    def _score_of(self, successor: Any) -> float | None:
        try:
            score = float(successor.score)
            if not math.isfinite(score):
                raise ValueError(f"its score is {score}")
        except Exception:  # the message was sent, so its run must be recorded in any case
            logger.exception(
                "beat: Entry %s could not compute its score, so the beat uses its schedule",
                successor.name,
            )
            return None
        return score if score < 0 else max(score, self.run.now + decide.SHORTEST_WAIT)


class OwnCode:
    """Decides which code of others takes part in sending, and makes the calls of it."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._app: Celery = scheduler.app
        self._judged: tuple[Any, ...] = ()
        #: The entry object and the options that a program passed to ``maybe_due`` just now, whose
        #: runs send this object. If the entry was edited since, they send what is stored.
        self.caller: tuple[RedBeatSchedulerEntry, Mapping[str, Any]] | None = None
        #: Rule and entry object of the entries that were called last, by key.
        self._entries: dict[str, tuple[Rule, RedBeatSchedulerEntry]] = {}
        self.refresh()

    def check(self, demanded: bool) -> None:
        """Raise :exc:`ConfigurationError` if exactly once is demanded and :attr:`method` is set."""
        if demanded and self.method:
            raise impossible(
                f"{self.method} is overridden, and may do anything after its message is out: "
                "remove the method, or the setting"
            )

    def refresh(self) -> None:
        """Judge again if a class was patched since the last call; call it once a turn. Cheap."""
        scheduler, app = self._scheduler, self._app
        kind, entry = type(scheduler), scheduler.Entry
        judged = (
            *(getattr(kind, name, None) for name in OF_SCHEDULER),
            *(vars(scheduler).get(name) for name in OF_SCHEDULER),
            *(getattr(entry, name, None) for name in OF_ENTRY),
            *(entry, Task.apply_async, vars(app).get("send_task")),
            getattr(type(app), "send_task", None),  # the app may be a mock
            bool(app.conf.task_always_eager),
        )
        if judged != self._judged:
            self._judged = judged
            self._judge(kind, entry)

    def _judge(self, kind: type, entry: Any) -> None:
        app, own, ours = self._app, vars(self._scheduler), _own_base(kind)
        whose = [judge(kind, name, ours) for name in OF_SCHEDULER]
        replaced = {name: _whose(own[name], kind) for name in OF_SCHEDULER if name in own}
        users = [f"{kind.__name__}.{name}" for name, one in replaced.items() if one == USER]
        method = _overridden(kind, OF_SCHEDULER, ours) or next(iter(users), "")
        own_classes: list[type] = []
        if isinstance(entry, type):
            method = method or _overridden(entry, OF_ENTRY, RedBeatSchedulerEntry)
            own_classes = [cls for cls in entry.__mro__ if cls not in RedBeatSchedulerEntry.__mro__]
        #: The overridden method of the scheduler or its ``Entry`` class, as ``Class.method``; "".
        self.method = method
        #: Whether the objects of entries decide whether they are due, also before their time.
        self.entries_decide = any(name in vars(cls) for cls in own_classes for name in DECIDING)
        eager = "task_always_eager" if app.conf.task_always_eager else ""
        #: Why all runs go through the hold: :attr:`method`, a patched ``Task``, eager tasks; "".
        self._all = method or _overridden(Task, (APPLY,), Task) or eager
        wrapped = LIBRARY in whose or LIBRARY in replaced.values()
        calls = bool(method) and not method.endswith(f".{TICK}")
        #: Whether all runs have an entry object, and whether code of others sees all runs.
        self._makes_entries = wrapped or calls or entry is not RedBeatSchedulerEntry
        self._has_others = bool(self._all) or self._makes_entries or self._publishes_otherwise(kind)

    def _publishes_otherwise(self, kind: type) -> bool:
        """Return whether code of others takes part in all messages, but need not be told of runs.

        For example a library that wraps ``Task.apply_async``, or a subclass of Celery.
        """
        app, producer = self._app, getattr(self._scheduler, "Producer", None)
        return (
            judge(Task, APPLY, Task) != OURS
            or judge(type(app), "send_task", Celery) != OURS
            or "send_task" in vars(app)
            or judge(kind, "producer", _own_base(kind)) != OURS
            or (producer or app.amqp.Producer) is not Producer
        )

    # -- what to ask about a run ---------------------------------------------------------------

    def part_in(self, rule: Rule) -> tuple[str, bool]:
        """Return which method of users takes part in sending a run, and whether any code does.

        The first is the name of a method of the scheduler, the entry class, the schedule
        (``is_due``) or the task (``apply_async``). With one, the run goes through the hold (at
        least once), unless at-most-once delivery is chosen.

        The second is whether code that is neither Celery's nor ours takes part. Then pass
        ``own=True`` to ``OneStep.capture`` and ``Sender.publish``: messages may leave on other
        channels.
        """
        if not (self._has_others or self.caller or rule.asks):
            task = self._tasks.get(rule.task)
            if task is None or (APPLY not in vars(task) and task.__class__.apply_async is CELERYS):
                return "", False  # as for nearly all runs
        applied = self._own_apply(rule.task)
        method = self._all or _own_is_due(rule.schedule) or applied
        return method, bool(self._has_others or self.caller or applied)

    @property
    def makes_entries(self) -> bool:
        """Whether runs are sent by :meth:`call`, with an entry object.

        True if methods of the scheduler or the entry class are overridden, or wrapped by a library
        (those keep exactly once: pass :meth:`call` to ``OneStep.capture``), or if the scheduler has
        an entry class of its own. False: Celery's ``Task.apply_async`` or ``send_task`` sends them.
        """
        return self._makes_entries or self.caller is not None

    def _own_apply(self, name: str) -> str:
        task = self._tasks.get(name)
        if task is None:
            return ""
        cls = type(task)
        if APPLY in vars(task):
            return f"{name}.{APPLY}"
        return "" if cls.apply_async is Task.apply_async else _overridden(cls, (APPLY,), Task)

    @cached_property
    def _tasks(self) -> Any:
        """The tasks of the app, cached because Celery's property acquires a lock at each access."""
        return self._app.tasks

    # -- calls ---------------------------------------------------------------------------------

    def call(self, run: Run, producer: Any) -> OwnCall:
        """Return the call that sends a run. One round trip for an own ``from_key``, else none.

        ``run`` has been decided, and has its id and headers. Raises what an entry class raises.
        """
        caller, options = self.caller or (None, None)
        rule = run.rule
        if caller is not None and caller.is_of(rule.key, rule.definition, rule.policy_text):
            entry = copy.copy(caller)
        else:
            entry = self._entry_of(run)
        entry.recall(run.row.meta or "", run.state.identity)
        at = run.state.at
        entry.scheduled_at = None if at is None else from_timestamp(at)
        part = entry.run = _part_in(run)
        send = run.verdict.send  # None for a signal about what is not sent
        if send is not None and send.held is not None:  # the same id, whatever the class computes
            entry.options = {**(entry.options or {}), "task_id": run.task_id}
        watched = bool(self._own_apply(rule.task))
        return OwnCall(self._scheduler, run, entry, part, producer, options, watched)

    def _entry_of(self, run: Run) -> RedBeatSchedulerEntry:
        rule, make = run.rule, self._scheduler.Entry
        if make.loads_itself():
            return self._load(make, rule.key)
        known = self._entries.get(rule.key)
        if known is None or known[0] is not rule or type(known[1]) is not make:
            if len(self._entries) >= MOST_ENTRIES:
                del self._entries[next(iter(self._entries))]
            made = make.from_definition(self._app, rule.definition, rule.policy_text)
            # What a static entry has in ``beat_schedule`` may be more than what is stored.
            made.schedule, made.args, made.kwargs = rule.schedule, rule.args, rule.kwargs
            known = self._entries[rule.key] = rule, made
        return copy.deepcopy(known[1])

    def _load(self, make: Any, key: str) -> RedBeatSchedulerEntry:
        try:
            loaded: RedBeatSchedulerEntry = make.from_key(key, app=self._app)
        except (RedBeatError, RedisError, OSError):
            raise
        except Exception as error:
            raise CannotRunHereError(described(error)) from error
        return loaded


def _own_is_due(schedule: Any) -> str:
    """Return the ``is_due`` of a user's schedule class, "" for a class of Celery or RedBeat."""
    method = getattr(type(schedule), "is_due", None)
    if getattr(method, "__module__", "").partition(".")[0] in KNOWN_PACKAGES:
        return ""
    return f"{type(schedule).__name__}.is_due"


def _part_in(run: Run) -> decide.Run:
    """Return the part that an entry object takes in a decided run."""
    now = from_timestamp(run.now)
    due = instant_in(run.row.score) or now
    part = decide.Run(now, due, headers=run.headers, task_id=run.own_id)
    part.at_most_once = run.stage == FIRST
    send = run.verdict.send
    if send is not None and send.kind == SCHEDULED and not run.asks:  # None: for a signal
        score = run.verdict.rest.score
        next_at = None if score < 0 else from_timestamp(score)
        part.decision = decide.Decision(send.at, next_at, send.missed)
    return part


# -- one entry at a time ---------------------------------------------------------------------------


def due_rows(store: Store) -> tuple[list[Row], float]:
    """Return the rows of all entries that are to be looked at and of the next one, and the time.

    Those that are due come first, in due order. The time is that of Redis, in UNIX seconds. Four
    round trips, and more for many entries.
    """
    now, keys = store.time(), store.keys
    inbox = ("ZRANGEBYSCORE", key_aside(keys.prefix, INBOX), "-inf", now)
    said = ask_aside(store.client, *inbox) or []
    due, following = ask(
        store.client,
        ("ZRANGEBYSCORE", keys.schedule, 0, now),
        ("ZRANGEBYSCORE", keys.schedule, f"({now!r}", "+inf", "LIMIT", 0, 1),
    )
    return read_rows(store, dict.fromkeys(map(text_of, (*due, *said, *following)))), now


class OwnTick:
    """Sends the entries that a program passes to ``maybe_due``, which may be of any class."""

    def __init__(self, beat: Beat, scheduler: Any, own: OwnCode) -> None:
        self._beat = beat
        self._scheduler = scheduler
        self._own = own
        #: How often in a row ``is_due()`` of entries of other classes has raised, by name.
        self._unanswered: Counter[str] = Counter()

    def run(self, entry: Any, options: dict[str, Any]) -> float | None:
        """Send an entry if it is due; return the seconds until it is due again, None for never.

        ``options`` are arguments of ``apply_async``.
        """
        stored = is_redbeat_entry(entry)
        due, seconds = self._scheduler.is_due(entry) if stored else self._ask(entry)
        if not (due or (stored and entry.put_up)):
            self._beat.hear_answers()
            return seconds
        look = Look(only=entry.key) if stored else None
        reply = self._beat.look(look)
        if reply is not None:
            self._beat.prepare(reply)
            if stored and not reply.rows:  # a new leader looks at nothing in its first turn
                reply = self._beat.look(look)
        if reply is None:
            return self._beat.stand_by()
        if not stored:
            after: float | None = self._scheduler.send_if_due(entry, **options)
            return after
        if not reply.rows:
            return AGAIN
        row = reply.rows[0]
        if row.definition is None and not row.problem:
            return self._send_unstored(entry, options) if due else seconds
        self._own.caller = entry, options
        try:
            score = self._beat.run_row(row.key, reply)
        finally:
            self._own.caller = None
        return self._beat.wait_for(score)

    def _ask(self, entry: Any) -> tuple[bool, float | None]:
        """Return what ``is_due()`` of an entry of another class returns; False if it raises."""
        name = str(getattr(entry, "name", entry))
        try:
            answer: tuple[bool, float | None] = self._scheduler.is_due(entry)
        except Exception as error:
            self._unanswered[name] += 1
            if self._unanswered[name] == 1 or should_log(self._unanswered[name]):
                logger.error(NOT_AN_ENTRY, name, type(entry).__name__, described(error))
            return False, AGAIN
        self._unanswered.pop(name, None)
        return answer

    def _send_unstored(self, entry: RedBeatSchedulerEntry, options: dict[str, Any]) -> float | None:
        """Send an entry that only the program has; its object remembers the run."""
        decision, count = entry.decision(), entry.total_run_count + 1
        seconds: float | None = self._scheduler.send_if_due(entry, **options)
        nominal = decision.anchor or decision.scheduled_at
        entry.adopt(History(entry.default_now(), count, nominal))
        return seconds
