"""What becomes of one claimed entry: sent, given back, parked or quarantined."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from celery.utils.log import get_logger
from redis.exceptions import RedisError

from redbeat.calendar.zones import UTC
from redbeat.delivery import AT_MOST_ONCE
from redbeat.entries.due import DISABLED
from redbeat.entries.lazy import LazyArgumentError, evaluated
from redbeat.entries.nominal import nominal
from redbeat.entries.occurrences import Run, Trigger, first_word
from redbeat.entries.prototypes import Histories, Prototypes
from redbeat.entries.runs import TRIGGERED, run_line
from redbeat.entry import RedBeatSchedulerEntry
from redbeat.errors import CannotRunHereError, DecodeError, InvalidEntryError
from redbeat.metrics.counters import Counters
from redbeat.signals import emit, entry_quarantined
from redbeat.storage.quarantine import Quarantine, shown
from redbeat.storage.records import AGAIN, WAITS, Claim, Completion
from redbeat.timing import asks_itself

from .failures import Failures, Recent
from .hooks import Hooks, Promise, name_of
from .keeper import Keeper, publish
from .outbox import Letter, Outbox
from .outcomes import Outcomes
from .overlap import goes_on, marker
from .statics import StaticEntries
from .waits import own_wait, score_of_not_due

__all__ = ("Dispatcher", "Given", "Loaded")

logger = get_logger("celery.beat")

#: An entry, or why it cannot be read.
Loaded = RedBeatSchedulerEntry | Exception

#: Entries that are read before the first of them is dispatched.
READ_AHEAD: Final = 50

#: Seconds after which what was decided about them is decided anew: the broker took its time.
DECIDED_FOR: Final = 0.1


class Given(NamedTuple):
    """What a program's own tick gave to ``maybe_due``: its object of an entry, and options."""

    entry: RedBeatSchedulerEntry
    options: dict[str, Any]


class Dispatcher:
    """Decides and publishes, one claim at a time.

    No round trips to Redis of its own, but for a lost run whose end is waited for. ``statics`` hold
    the functions among the arguments of static entries, ``outbox`` what the broker has not
    confirmed yet; ``delivery`` is how runs are delivered, unless their entry says otherwise.
    """

    def __init__(
        self,
        hooks: Hooks,
        quarantine: Quarantine,
        outbox: Outbox,
        statics: StaticEntries,
        counters: Counters,
        delivery: str,
    ) -> None:
        self._outbox = outbox
        self._alone: Recent[bool] = Recent()
        self._done: list[Completion] = []
        self._hooks = hooks
        self._counters = counters
        self._statics = statics
        self._delivery = delivery
        self._decided_at = 0.0
        self._quarantine = quarantine
        self._prototypes = Prototypes(hooks)
        self._histories = Histories()
        self.failures = Failures(hooks, self._counters)
        self._outcomes = Outcomes(hooks, self._counters, self._histories)
        self.keeper = Keeper(hooks, self.failures, self._outcomes, self._counters)

    def loaded(
        self,
        claims: Sequence[Claim],
        time: Callable[[], float],
        given: Given | None = None,
    ) -> Iterator[Loaded]:
        """Yield the entry of each claim with its run, or why it cannot be read.

        Many are read and decided in a row: that takes less time than one after the other between
        two messages. ``time`` returns that of Redis, UNIX seconds. ``given`` is what a program
        gave to send of one of them.
        """
        first = 0
        while first < len(claims):
            self._prototypes.refresh()
            self._decided_at = time()
            now = datetime.fromtimestamp(self._decided_at, UTC)
            entries: list[Loaded] = []
            for claim in claims[first : first + READ_AHEAD]:
                entry = self._load(claim, given)
                entries.append(entry)
                if not isinstance(entry, Exception):
                    self._look_at(entry, now, claim)
                    if given is not None and entry.run is not None:
                        entry.run.options = given.options
                if time() - self._decided_at > DECIDED_FOR:
                    break
            yield from entries
            first += len(entries)

    def _look_at(self, entry: RedBeatSchedulerEntry, now: datetime, claim: Claim) -> None:
        """Decide on an entry before its turn; where that fails, its turn tells of it.

        Not where code of the user's own decides, which is asked once, and when it is needed.
        """
        entry.run = Run(now, datetime.fromtimestamp(claim.due, UTC))
        if asks_itself(entry.schedule):
            return
        try:
            entry.verdict()
        except Exception as error:
            logger.debug("beat: Cannot tell yet when %s is due: %r", shown(claim.key), error)

    def dispatch(
        self, entry: Loaded, claim: Claim, claim_id: str, now: float
    ) -> Completion | Promise | None:
        """Run a claimed entry as it was :meth:`loaded` and return what to record.

        ``now`` is the time of Redis, UNIX seconds. A run that is to be sent at most once is not
        published but returned as a promise, for :meth:`keep`. None when there is nothing to record
        because the entry is quarantined, or not yet because its message was published: then it is
        among what :meth:`delivered` returns.
        """
        if isinstance(entry, Exception):
            return self._not_loaded(entry, claim, claim_id, now)
        run = entry.run
        assert run is not None
        run.now = datetime.fromtimestamp(now, UTC)
        if now - self._decided_at > DECIDED_FOR:
            run.verdict = None
        run.at_most_once = (entry.policy_field("delivery") or self._delivery) == AT_MOST_ONCE
        if claim.trigger:
            return self._triggered(entry, run, claim, claim_id, now)
        if not entry.enabled:
            return Completion(claim.key, claim_id, DISABLED)
        return self._dispatch(entry, run, claim, claim_id, now)

    def _not_loaded(
        self, error: Exception, claim: Claim, claim_id: str, now: float
    ) -> Completion | None:
        if isinstance(error, (DecodeError, InvalidEntryError)) and not isinstance(
            error, CannotRunHereError
        ):
            self._set_aside(claim, claim_id, str(error), now)
            return None
        if isinstance(error, (RedisError, OSError)):  # of a from_key() of the program's
            return self._note(claim, claim_id, now, error)
        self._hear()
        return self.failures.put_back(claim, claim_id, now, error)

    def _dispatch(
        self, entry: RedBeatSchedulerEntry, run: Run, claim: Claim, claim_id: str, now: float
    ) -> Completion | Promise | None:
        try:
            due = entry.verdict().due
        except Exception as error:
            if asks_itself(entry.schedule):  # the user's own code, which may recover
                return self._note(claim, claim_id, now, error)
            reason = f"definition.schedule: cannot tell when it is due: {error!r}"
            self._set_aside(claim, claim_id, reason, now)
            return None
        if due and goes_on(entry, claim, now):
            return self._outcomes.put_off(entry, claim, claim_id, now)
        if due:
            try:
                self._statics.give_functions(entry)
            except LazyArgumentError as error:
                return self._note(claim, claim_id, now, error)
        send = self._promise if run.at_most_once else self._run
        return send(entry, run, claim, claim_id, now)

    def delivered(self) -> list[Completion]:
        """Wait for the broker to answer for what is on its way; return what to record of it."""
        self._hear()
        return self._take_done()

    def advanced(self) -> list[Completion]:
        """Have what was published leave; return what to record of that which left before."""
        self._done += map(self._settled, self._outbox.advance())
        return self._take_done()

    def _take_done(self) -> list[Completion]:
        done, self._done = self._done, []
        return done

    def _hear(self) -> None:
        """See to what was published, before anything is made of what went wrong after it."""
        self._done += map(self._settled, self._outbox.deliver())

    def _settled(self, letter: Letter) -> Completion:
        """Return what to record for a run that was published."""
        entry, claim, claim_id, now = letter.entry, letter.claim, letter.claim_id, letter.now
        if letter.error is not None:
            return self._failed(claim, claim_id, now, letter.error, shared=letter.shared)
        self._alone.forget(claim.key)
        self.failures.forget(claim)
        self._outcomes.announce(entry)
        own = own_wait(entry, letter.seconds, now)
        return self._outcomes.sent(entry, claim, claim_id, own, now)

    def _failed(
        self, claim: Claim, claim_id: str, now: float, error: Exception, shared: bool
    ) -> Completion:
        """Return what to record for a run that was not sent, perhaps by the fault of another.

        Then it is tried again at once, and waited for by itself.
        """
        own = self._alone.get(claim.key) or not shared
        if own or self.failures.broker_is_away(error) or not self._alone.keep(claim.key, True, now):
            return self.failures.note(claim, claim_id, now, error)
        return Completion(claim.key, claim_id, now, runtime=AGAIN)

    def _note(self, claim: Claim, claim_id: str, now: float, error: Exception) -> Completion:
        """Keep a run that could not be sent, after what was published before it is seen to."""
        self._hear()
        return self.failures.note(claim, claim_id, now, error)

    def _set_aside(self, claim: Claim, claim_id: str, reason: str, now: float) -> None:
        self._quarantine.add(claim, claim_id, reason, now)
        name = name_of(self._hooks, claim)
        self._counters.add("quarantined", name)
        emit(entry_quarantined, self._hooks, name=shown(name), reason=reason)

    def _promise(
        self, entry: RedBeatSchedulerEntry, run: Run, claim: Claim, claim_id: str, now: float
    ) -> Completion | Promise:
        """Decide as :meth:`_run` does, and connect to the broker, but publish nothing."""
        try:
            self._hooks.check_broker()
            is_due, seconds = self._hooks.is_due(entry)
            if is_due:
                entry.args, entry.kwargs = evaluated(entry.args, entry.kwargs)
                run.task_id = entry.task_id_of(run.instant)
                run.own_id = run.task_id == entry.own_task_id(run.instant)
                run.successor = self._hooks.reserve(entry)
                if not isinstance(run.successor, RedBeatSchedulerEntry):
                    raise TypeError(f"reserve() returned {run.successor!r:.60}, not an entry")
        except Exception as error:
            return self._note(claim, claim_id, now, error)
        if not is_due:
            score = score_of_not_due(entry, run, seconds, now)
            return self._outcomes.not_sent(entry, claim, claim_id, score, now)
        self.failures.forget(claim)
        done = self._outcomes.sent(entry, claim, claim_id, own_wait(entry, seconds, now), now)
        return Promise(entry, claim, done._replace(promised=True))

    def _triggered(
        self, entry: RedBeatSchedulerEntry, run: Run, claim: Claim, claim_id: str, now: float
    ) -> Completion | Promise:
        """Send the first of the runs that were asked for beside the schedule.

        The entry is handed out again at once, for the next of them or for what is due.
        """
        again = Completion(claim.key, claim_id, now, runtime=AGAIN)
        try:
            trigger = Trigger.first(claim.trigger)
        except (ValueError, OverflowError, OSError):
            logger.error("beat: Entry %s: %r is no trigger", entry.name, claim.trigger)
            return again._replace(trigger=first_word(claim.trigger))
        if goes_on(entry, claim, now):
            return again._replace(score=float(claim.running_until), running=WAITS)
        run.trigger, task_id = trigger, entry.task_id_of(trigger.id)
        line = run_line(nominal(trigger.at), now, TRIGGERED, task_id)
        running = marker(entry, task_id)
        done = again._replace(trigger=trigger.id, history=line, running=running)
        try:
            self._statics.give_functions(entry)
            if run.at_most_once:
                self._hooks.check_broker()
                entry.args, entry.kwargs = evaluated(entry.args, entry.kwargs)
                run.task_id = task_id
                self.failures.broker_is_there()
                return Promise(entry, claim, done._replace(promised=True))
            publish(self._hooks, entry, self._hooks.producer)
        except Exception as error:
            return self._note(claim, claim_id, now, error)
        self.failures.forget(claim)
        self._outcomes.announce(entry)
        return done

    def _load(self, claim: Claim, given: Given | None = None) -> Loaded:
        if claim.problem or claim.definition is None:
            return DecodeError("definition", claim.problem)
        make = self._hooks.Entry
        try:
            if given and given.entry.is_of(claim.key, claim.definition, claim.policy):
                entry = given.entry.with_history(claim.meta, claim.runtime)
            elif make.loads_itself():
                entry = make.from_key(claim.key, app=self._hooks.app)
            else:
                entry = self._prototypes.get(claim.key, claim.definition, claim.policy)
                self._histories.give(entry, claim.key, claim.meta, claim.runtime)
            entry._identity = claim.identity
            self._statics.give_schedule(entry)
        except Exception as error:
            return error
        return entry

    def _run(
        self, entry: RedBeatSchedulerEntry, run: Run, claim: Claim, claim_id: str, now: float
    ) -> Completion | None:
        try:
            producer = self._hooks.producer
            with self._outbox.publishing(producer, bool(self._alone.get(claim.key))):
                seconds = publish(self._hooks, entry, producer)
                if run.sent:
                    self._outbox.add(Letter(entry, claim, claim_id, seconds, now))
                    return None
        except Exception as error:
            return self._note(claim, claim_id, now, error)
        if run.error is None and run.successor is not None:
            return self._settled(Letter(entry, claim, claim_id, seconds, now))
        if run.error is not None:
            shared = self._outbox.shares_errors
            self._hear()
            return self._failed(claim, claim_id, now, run.error, shared)
        score = score_of_not_due(entry, run, seconds, now)
        return self._outcomes.not_sent(entry, claim, claim_id, score, now)
