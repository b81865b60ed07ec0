"""The one place that calls what users override in sending. Plain runs never come here.

It also sends single entries, for programs with a ``tick`` or a mapping of entries of their own.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from celery import Celery, Task
from kombu.messaging import Producer
from redis.exceptions import RedisError

from redbeat.beat.broker import impossible
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
from redbeat.storage.reading import ask, read_rows
from redbeat.storage.rows import Look, Row
from redbeat.storage.store import Store
from redbeat.storage.words import INBOX

from .surroundings import LIBRARY, OURS, USER, judge, overridden

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

MOST_ENTRIES: Final = 1000

#: Seconds to wait for an entry that can't say when it's due, or wasn't looked at.
AGAIN: Final = 1.0

NOT_AN_ENTRY: Final = (
    "beat: Entry %s of the schedule does not run: is_due() of class %s raised %s. An entry must be "
    "a RedBeatSchedulerEntry, or a ScheduleEntry of Celery"
)


# -- calling it ------------------------------------------------------------------------------------


@dataclass(slots=True)
class OwnCall:
    """One call of users' code: a callable for ``Sender.publish`` and ``OneStep.capture``.

    It returns what ``apply_async`` returned, or None if no id is known.

    Attributes:
        part: the part that the entry takes in the run, which is ``entry.run``.
        options: the arguments of ``maybe_due`` of a program's own tick, else None.
        watched: whether only a message that this process sees counts as sent. So it is for a task
            with its own ``apply_async``, which may send none. Otherwise what the scheduler's code
            sent is sent: its ``send_task`` may publish elsewhere.
        seconds: what ``maybe_due`` returned, the seconds until the next run.
        declined: whether users' code said that the entry isn't due now. If nothing left, the
            occurrence isn't used up, and :attr:`score` says when to look again.
        score: the next score that users' code wants (an entry class with its own ``is_due``,
            ``score`` or ``due_at``), in UNIX seconds, negative if parked. None: the verdict's.
        meta: the history that users' code made (``reserve``, ``next``), as JSON for ``meta``. None:
            the verdict's.
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
        """Whether the run counts as sent although nobody saw a message."""
        return not self.watched and (self.part.sent or self.part.successor is not None)

    def __call__(self) -> Any:
        """Call the scheduler's ``maybe_due``, or ``apply_async`` for a triggered run."""
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
        successor = self.part.successor
        self.declined = not self.part.sent and successor is None
        self.score = self._own_score()
        is_plain = type(self.entry) is type(successor) is RedBeatSchedulerEntry
        if isinstance(successor, RedBeatSchedulerEntry) and not is_plain:
            self.meta = successor.history_text()

    def _own_score(self) -> float | None:
        """The score that users' code wants; None if the schedule decides, or nearly agrees."""
        entry, part, seconds = self.entry, self.part, self.seconds
        if part.successor is not None and entry.overrides("score", "due_at"):
            return self._score_of(part.successor)
        asked = judge(type(entry), "is_due") == USER
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
        except Exception:  # the message is out, so its run must be recorded in any case
            logger.exception(
                "beat: Entry %s could not compute its score, so the beat uses its schedule",
                successor.name,
            )
            return None
        return score if score < 0 else max(score, self.run.now + decide.SHORTEST_WAIT)


class OwnCode:
    """Knows whose code takes part in sending, and makes the calls to it."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._app: Celery = scheduler.app
        self._judged: tuple[Any, ...] = ()
        #: The entry object and options that a program has just passed to ``maybe_due``. Its run
        #: sends this object, unless the entry was edited since: then what is stored.
        self.caller: tuple[RedBeatSchedulerEntry, Mapping[str, Any]] | None = None
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
        """Judge again if a class was patched since the last call. Cheap; call it once a turn."""
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
            self._judge(entry)

    def _judge(self, entry: Any) -> None:
        app, scheduler = self._app, self._scheduler
        entry_class = entry if isinstance(entry, type) else RedBeatSchedulerEntry
        method = overridden(scheduler, OF_SCHEDULER) or overridden(entry_class, OF_ENTRY)
        #: The overridden method of the scheduler or its ``Entry`` class as ``Class.method``, or "".
        self.method = method
        #: Whether entry objects decide whether they are due, even before their time.
        self.entries_decide = bool(overridden(entry_class, DECIDING))
        eager = "task_always_eager" if app.conf.task_always_eager else ""
        #: Why all runs are held first: :attr:`method`, a patched ``Task``, eager tasks; else "".
        self._all = method or overridden(Task, (APPLY,)) or eager
        wrapped = LIBRARY in [judge(scheduler, name) for name in OF_SCHEDULER]
        calls = bool(method) and not method.endswith(f".{TICK}")
        #: Whether all runs get an entry object, and whether foreign code sees all runs.
        self._makes_entries = wrapped or calls or entry is not RedBeatSchedulerEntry
        self._has_others = bool(self._all) or self._makes_entries or self._publishes_otherwise()

    def _publishes_otherwise(self) -> bool:
        """Whether foreign code takes part in all messages, though it needn't hear of runs.

        For example a library that wraps ``Task.apply_async``, or a subclass of Celery.
        """
        app, producer = self._app, getattr(self._scheduler, "Producer", None)
        functions = (Task, APPLY), (app, "send_task"), (type(self._scheduler), "producer")
        if any(judge(owner, name) != OURS for owner, name in functions):
            return True
        return (producer or app.amqp.Producer) is not Producer

    # -- what to ask about a run ---------------------------------------------------------------

    def part_in(self, rule: Rule) -> tuple[str, bool]:
        """Which user method takes part in sending a run, and whether any foreign code does.

        The first is a method of the scheduler, the entry class, the schedule (``is_due``) or the
        task (``apply_async``), or "". With one, the run is held first (at least once), unless
        delivery is at most once.

        The second is true for code that is neither Celery's nor ours. Then pass ``own=True`` to
        ``OneStep.capture`` and ``Sender.publish``: messages may leave on other channels.
        """
        if not (self._has_others or self.caller or rule.asks):
            task = self._tasks.get(rule.task)
            if task is None or (APPLY not in vars(task) and task.__class__.apply_async is CELERYS):
                return "", False  # as for nearly all runs
        applied = self._own_apply(rule.task)
        method = self._all or overridden(type(rule.schedule), ("is_due",)) or applied
        return method, bool(self._has_others or self.caller or applied)

    @property
    def makes_entries(self) -> bool:
        """Whether runs are sent by :meth:`call`, with an entry object.

        So they are if methods of the scheduler or the entry class are overridden, if a library
        wraps them (that keeps exactly once: pass :meth:`call` to ``OneStep.capture``), or if the
        scheduler has an entry class of its own. Otherwise Celery's ``Task.apply_async`` or
        ``send_task`` sends them.
        """
        return self._makes_entries or self.caller is not None

    def _own_apply(self, name: str) -> str:
        task = self._tasks.get(name)
        if task is None:
            return ""
        cls = type(task)
        if APPLY in vars(task):
            return f"{name}.{APPLY}"
        return "" if cls.apply_async is Task.apply_async else overridden(cls, (APPLY,))

    @cached_property
    def _tasks(self) -> Any:
        """Cached, because Celery's property acquires a lock at each access."""
        return self._app.tasks

    # -- calls ---------------------------------------------------------------------------------

    def call(self, run: Run, producer: Any) -> OwnCall:
        """The call that sends a decided run, which has its id and headers.

        One round trip if the entry class has its own ``from_key``, else none. Raises what an entry
        class raises.
        """
        caller, options = self.caller or (None, None)
        rule = run.rule
        what = (rule.key, (rule.definition, rule.policy_text))
        if caller is not None and (caller.key, caller.seen_texts) == what:
            entry = copy.copy(caller)
        else:
            entry = self._entry_of(run)
        entry.recall(run.row.meta or "", run.state.identity)
        at = run.state.at
        entry.nominal_at = None if at is None else from_timestamp(at)
        part = entry.run = _part_in(run)
        send = run.verdict.send  # None for a signal about something that isn't sent
        if send is not None and send.held is not None:  # the same id, whatever the class computes
            entry.options = {**(entry.options or {}), "task_id": run.task_id}
        watched = bool(self._own_apply(rule.task))
        return OwnCall(self._scheduler, run, entry, part, producer, options, watched)

    def _entry_of(self, run: Run) -> RedBeatSchedulerEntry:
        rule, make = run.rule, self._scheduler.Entry
        if make.overrides("from_key"):
            try:
                loaded: RedBeatSchedulerEntry = make.from_key(rule.key, app=self._app)
            except (RedBeatError, RedisError, OSError):
                raise
            except Exception as error:
                raise CannotRunHereError(described(error)) from error
            return loaded
        known = self._entries.get(rule.key)
        if known is None or known[0] is not rule or type(known[1]) is not make:
            if len(self._entries) >= MOST_ENTRIES:
                del self._entries[next(iter(self._entries))]
            made = make.from_definition(self._app, rule.definition, rule.policy_text)
            # A static entry may have more in ``beat_schedule`` than what is stored.
            made.schedule, made.args, made.kwargs = rule.schedule, rule.args, rule.kwargs
            known = self._entries[rule.key] = rule, made
        return copy.deepcopy(known[1])


def _part_in(run: Run) -> decide.Run:
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
    """All rows to look at now and the next one, and Redis's time in UNIX seconds.

    Those that are due come first, in due order. Four round trips, more for many entries.
    """
    now, keys = store.time(), store.keys
    inbox = ("ZRANGEBYSCORE", key_aside(keys.prefix, INBOX), "-inf", now)
    said = store.read_aside(*inbox) or []
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
        #: Names of entries of other classes whose ``is_due()`` last raised.
        self._unanswered: set[str] = set()

    def run(self, entry: Any, options: dict[str, Any]) -> float | None:
        """Send an entry if it's due; return the seconds until it's due again, None for never.

        ``options`` go to ``apply_async``.
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
        """``is_due()`` of an entry of another class. Not due if it raises."""
        name = str(getattr(entry, "name", entry))
        try:
            answer: tuple[bool, float | None] = self._scheduler.is_due(entry)
        except Exception as error:
            if name not in self._unanswered:
                logger.error(NOT_AN_ENTRY, name, type(entry).__name__, described(error))
            self._unanswered.add(name)
            return False, AGAIN
        self._unanswered.discard(name)
        return answer

    def _send_unstored(self, entry: RedBeatSchedulerEntry, options: dict[str, Any]) -> float | None:
        """Send an entry that only the program has; its object remembers the run."""
        decision, count = entry.decision(), entry.total_run_count + 1
        seconds: float | None = self._scheduler.send_if_due(entry, **options)
        nominal = decision.anchor or decision.scheduled_at
        entry.adopt(History(entry.default_now(), count, nominal))
        return seconds
