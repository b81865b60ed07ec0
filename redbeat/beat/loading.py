"""Loads several claimed entries in a row, and decides whether each entry is due."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

from redbeat.calendar.zones import UTC
from redbeat.codec.stored import instant_in
from redbeat.entries.calendars import decode_calendars
from redbeat.entries.decide import Run
from redbeat.entries.templates import Prototypes
from redbeat.entry import RedBeatSchedulerEntry
from redbeat.errors import DecodeError, TooManyStepsError
from redbeat.printing import get_logger
from redbeat.schedules.next_run import asks_itself
from redbeat.storage.records import Claim, calendars_read
from redbeat.storage.store import Store

from .retries import RecentEntries
from .scheduler_protocol import SchedulerProtocol
from .session import Response
from .statics import StaticEntries

logger = get_logger("celery.beat")

#: Maximum number of entries that are loaded before the first loaded entry is dispatched.
LOAD_AHEAD: Final = 50

#: An entry that takes more than this number of seconds is loaded after the others of its batch.
SLOW: Final = 0.02

#: Entries whose definitions have more than ``LONG_TEXT`` characters are loaded last in a batch.
LONG_TEXT: Final = 65_536

#: Maximum number of seconds to load entries before the loaded entries are dispatched.
LOAD_SECONDS: Final = 0.1


class CallerEntry(NamedTuple):
    """The entry object and the options that a program's own tick passed to ``maybe_due``."""

    entry: RedBeatSchedulerEntry
    options: dict[str, Any]


@dataclass(slots=True)
class Attempt:
    """An attempt to send a run of a claimed entry.

    Attributes:
        entry: the loaded entry.
        claim: the claim, with the calendars that the entry depends on.
        way: the order of sending the message and recording the run, as far as the claim decides.
        now: the time of Redis at which the entry is dispatched, UNIX seconds.
        seconds: the seconds until the next run, as returned by ``is_due`` of the entry.
        error: why the message was not sent, None for success.
        shared: whether another message may have caused the error.
    """

    entry: RedBeatSchedulerEntry
    claim: Claim
    way: str
    now: float
    seconds: Any = None
    error: Exception | None = None
    shared: bool = False

    @property
    def run(self) -> Run:
        """The run that :class:`Loader` has set on the entry."""
        run = self.entry.run
        assert run is not None
        return run


#: The result of loading an entry: an attempt that contains the entry, or the error that occurred.
Loaded = Attempt | Exception


class Loader:
    """Loads claimed entries.

    ``statics`` contains the schedule objects that Redis cannot store. ``clock`` returns monotonic
    seconds.
    """

    def __init__(
        self,
        scheduler: SchedulerProtocol,
        store: Store,
        statics: StaticEntries,
        clock: Callable[[], float],
    ) -> None:
        self._scheduler = scheduler
        self._store = store
        self._statics = statics
        self._clock = clock
        #: A cache of entries, and of the histories that this beat wrote.
        self.prototypes = Prototypes(scheduler)
        #: Maps the names of calendars to their JSON texts.
        #: The attribute is None until an entry of the current reply needs a calendar.
        self._calendar_texts: dict[str, str] | None = None
        self._slow: RecentEntries[bool] = RecentEntries()
        #: The seconds that this batch has spent on entries that take longer than ``SLOW``.
        self.slow_seconds = 0.0

    def rank(self, claim: Claim) -> int:
        """Return the place of a claim in its batch: entries that may take long come last."""
        text = claim.definition or ""
        if len(text) > LONG_TEXT:
            return 3
        if self._slow.get(claim.key):
            return 2
        is_long = '"exclude"' in (claim.policy or "") or '"rrule' in text
        return 1 if is_long else 0

    def load_all(
        self, response: Response, caller_entry: CallerEntry | None = None
    ) -> Iterator[Loaded]:
        """Yield the loaded entry of each claim, or the error of loading the entry.

        This method loads several entries in a row, and decides whether they are due. It takes less
        time to load entries in a row than to load each entry just before its message is sent.
        ``caller_entry`` contains the entry that a program passed to ``maybe_due``. Takes one round
        trip if any of the entries has calendars, else none.
        """
        claims, self._calendar_texts = response.reply.claims, None
        self.slow_seconds = 0.0
        first, now = 0, datetime.fromtimestamp(response.reply.now, UTC)
        while first < len(claims):
            self.prototypes.refresh()
            started = self._clock()
            batch: list[Loaded] = []
            ended = started
            for claim in claims[first : first + LOAD_AHEAD]:
                began = ended
                loaded = self._load(claim, response, caller_entry)
                if not isinstance(loaded, Exception):
                    loaded = self._decide_early(loaded, now)
                if caller_entry is not None and not isinstance(loaded, Exception):
                    loaded.run.options = caller_entry.options
                batch.append(loaded)
                ended = self._clock()
                if ended - began > SLOW:
                    self._note_slow(claim.key, ended - began, ended)
                if ended - started > LOAD_SECONDS:
                    break
            yield from batch
            first += len(batch)

    def _note_slow(self, key: str, seconds: float, now: float) -> None:
        if not self._slow.get(key) and seconds > LOAD_SECONDS:
            logger.info("beat: Deciding whether %s is due took %.2f s", key, seconds)
        self._slow.keep(key, True, now)
        self.slow_seconds += seconds

    def _load(self, claim: Claim, response: Response, caller_entry: CallerEntry | None) -> Loaded:
        if claim.problem or claim.definition is None:
            return DecodeError("definition", claim.problem)
        entry_class = self._scheduler.Entry
        history = claim.meta, claim.runtime, claim.identity
        try:
            if caller_entry and caller_entry.entry.is_of(claim.key, claim.definition, claim.policy):
                entry = copy(caller_entry.entry)
                entry.recall(*history)
            elif entry_class.loads_itself():
                entry = entry_class.from_key(claim.key, app=self._scheduler.app)
                entry.saved_state = entry.saved_state._replace(identity=claim.identity)
            else:
                texts = claim.definition, claim.policy
                entry = self.prototypes.load(claim.key, *texts, *history)
            self._statics.restore_schedule(entry)
            if entry.policy_field("exclude"):
                claim = self._with_calendars(entry, claim)
        except Exception as error:
            return error
        return Attempt(entry, claim, response.request.way, response.reply.now)

    def _with_calendars(self, entry: RedBeatSchedulerEntry, claim: Claim) -> Claim:
        """Set the calendars of an entry, and return the claim with the calendars.

        Takes one round trip at the first entry with calendars in a reply, else none.
        """
        names = entry.policy.exclude
        if self._calendar_texts is None:
            self._calendar_texts = self._store.calendars()
        read = calendars_read(self._calendar_texts, names)
        try:
            entry.use_calendars(decode_calendars(self._calendar_texts, names))
        except DecodeError as error:
            error.calendars = read
            raise
        return claim._replace(calendars=read)

    def _decide_early(self, attempt: Attempt, now: datetime) -> Loaded:
        """Decide whether an entry is due, before the entry is dispatched.

        If the early decision fails, the dispatcher decides again, unless the decision took too many
        steps. Schedules with user code are skipped, because user code must be called only once,
        when the entry is dispatched.
        """
        entry, claim = attempt.entry, attempt.claim
        decided_at = instant_in(claim.since) or now
        entry.run = Run(now, datetime.fromtimestamp(claim.due, UTC), decided_at)
        if asks_itself(entry.schedule):
            return attempt
        try:
            entry.decision()
        except TooManyStepsError as error:
            error.calendars = claim.calendars
            return error
        except Exception as error:
            logger.debug("beat: Could not decide early whether %s is due: %r", claim.key, error)
        return attempt
