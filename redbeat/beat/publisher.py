"""Messages: their ids and headers, publishing them, and those that are not confirmed yet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Protocol

from celery.utils.log import get_logger

from redbeat.connection.options import is_number
from redbeat.entries.decide import Run
from redbeat.entries.definition import TIMES, seconds_of
from redbeat.entries.lazy import evaluated
from redbeat.entries.runs import Nominal
from redbeat.entry import RedBeatSchedulerEntry
from redbeat.storage.records import Claim

from .amqp_pipe import AmqpPipe
from .redis_pipe import RedisPipe
from .scheduler_protocol import SchedulerProtocol

__all__ = (
    "OVERLAP_HEADER",
    "InFlightMessage",
    "Pipe",
    "Publisher",
    "TaskMessage",
    "addressed",
    "pipe_of",
    "publish",
    "retry_options",
    "sendable_options",
)

logger = get_logger("celery.beat")

#: The header with the key of an entry whose runs must not overlap.
OVERLAP_HEADER = "redbeat_overlap"


#: Kombu tries once more, at once: mostly a connection that was closed while it was idle. Whatever
#: lasts longer is retried by the tick, which has other entries to see to meanwhile.
ONE_RETRY: Final[dict[str, float]] = {
    "max_retries": 1,
    "interval_start": 0,
    "interval_step": 0,
    "interval_max": 0,
}

#: Options of an entry that take the place of the timeouts above, and the seconds they may be: as
#: much as an attempt has by default.
BOUNDED_OPTIONS = frozenset(("timeout", "confirm_timeout"))
LONGEST_WAIT = 5.0


@dataclass(slots=True)
class TaskMessage:
    """What Celery needs of an entry to send its task."""

    name: str
    task: str
    args: Any
    kwargs: Any
    options: dict[str, Any]
    #: Whether the task id is the one that anybody can compute.
    own_id: bool


def addressed(
    entry: RedBeatSchedulerEntry, instant: Nominal, run: Run | None = None
) -> TaskMessage:
    """Return the message of ``entry``, whose options carry what identifies the occurrence.

    ``instant`` is when that is due, ``run`` what else is known of it. The ``task_id`` is derived
    from the occurrence, so that sending it again does not make a new task; headers ``scheduled_at``
    (ISO 8601, UTC) and ``periodic_task_name`` tell the task what it was sent for, and
    ``celery_beat_task`` that a beat has sent it. ``coalesced`` is there when the run makes up for
    occurrences that were missed: it tells how many; ``triggered`` when the run is beside the
    schedule. Options of the user's own win, but that what is sent at most once is not retried.

    Functions among the arguments are called; :exc:`LazyArgumentError` where one of them raises.
    """
    given = sendable_options(entry.options or {})
    options = retry_options(given, run is not None and run.at_most_once)
    headers: dict[str, Any] = {"scheduled_at": instant.iso, "periodic_task_name": entry.name}
    occurrence = instant.iso
    if run is not None and run.trigger is not None:
        headers["triggered"] = True
        occurrence = f"trigger {run.trigger.id}"
    elif run is not None and run.decision is not None and run.decision.missed:
        headers["coalesced"] = run.decision.missed
    if entry.policy_field("overlap") != "allow":
        headers[OVERLAP_HEADER] = entry.key
    if given.get("headers"):
        headers.update(given["headers"])
    headers["celery_beat_task"] = True
    options["headers"] = headers
    task_id = given.get("task_id")
    options["task_id"] = task_id or entry.derived_id(occurrence)
    args, kwargs = evaluated(entry.args, entry.kwargs)
    return TaskMessage(entry.name, entry.task, args, kwargs, options, not task_id)


def sendable_options(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return options as ``apply_async`` takes them; what it cannot take is left to its own words.

    An ``eta`` in seconds is sent as a ``countdown``, unless there is one, which wins in Celery too.
    """
    if TIMES.keys().isdisjoint(options):
        return options
    sendable = dict(options)
    for name in TIMES.keys() & sendable.keys():
        sendable[name] = seconds_of(sendable[name])
    if is_number(sendable.get("eta")):
        seconds = sendable.pop("eta")
        sendable["countdown"] = sendable.get("countdown") or seconds
    return sendable


def retry_options(options: Mapping[str, Any], at_most_once: bool) -> dict[str, Any]:
    """Return options of ``apply_async`` for how often a publish is tried, and for how long.

    Twice, or only once if ``at_most_once`` or the entry's own ``retry_policy`` says so; nothing in
    an entry makes it more. Its ``timeout`` and ``confirm_timeout`` are :data:`LONGEST_WAIT` at
    most. What else a policy says is left out: kombu would keep it in the connection, for all
    entries.
    """
    bounded = dict(options)
    for name in BOUNDED_OPTIONS & options.keys():
        if is_number(options[name]):
            bounded[name] = min(options[name], LONGEST_WAIT)
    given = bounded.pop("retry_policy", None)
    if at_most_once:
        bounded["retry"] = False
    else:
        bounded["retry_policy"] = ONE_RETRY if given is None else _bounded_policy(given)
    return bounded


def _bounded_policy(given: Any) -> dict[str, float]:
    retries = given.get("max_retries") if isinstance(given, Mapping) else None
    return {**ONE_RETRY, "max_retries": 0} if retries == 0 else ONE_RETRY


def publish(
    scheduler: SchedulerProtocol, entry: RedBeatSchedulerEntry, producer: Any
) -> float | None:
    """Send an entry for what it is due for, or for its trigger; return what ``is_due`` says."""
    run = entry.run
    if run is not None and run.trigger is None and run.options is not None:
        return scheduler.send_if_due(entry, **run.options)
    if run is None or run.trigger is None:
        return scheduler.maybe_due(entry, producer=producer)
    logger.info("Scheduler: Sending triggered task %s (%s)", entry.name, entry.task)
    scheduler.apply_async(entry, producer=producer, advance=False)
    run.sent = True
    return None


class Pipe(Protocol):
    """Messages that one channel has collected, and those of them that are on their way."""

    channel: Any

    #: Whether an error on the channel may be about a message that was published before.
    shares_errors: bool

    @property
    def size(self) -> int:
        """How many operations of the broker were collected since :meth:`leave`."""

    @property
    def nbytes(self) -> int:
        """How many bytes they take, as far as this process has to keep them."""

    def __enter__(self) -> None:
        """From now on publishing on the channel does not wait for the broker."""

    def __exit__(self, *exc_info: object) -> None:
        """It waits again."""

    def flush(self) -> None:
        """Send what was collected, and wait for nothing; nothing else may be on its way.

        Raises nothing of its own: :meth:`answers` tells what went wrong.
        """

    def results(self) -> list[Exception | None]:
        """Wait for the broker; return for each operation that left why it failed, else None.

        Raises nothing of its own; afterwards nothing is on its way.
        """

    def close(self) -> None:
        """Let go of what belongs to the pipe; the channel stays as it is."""


def pipe_of(channel: Any) -> Pipe | None:
    """Return a pipe for a channel of kombu, None for a transport that has no use for one.

    No network traffic. Redis in all its forms has; so has RabbitMQ where it confirms what is
    published. Where it does not, nothing is waited for anyhow.
    """
    if hasattr(channel, "conn_or_acquire"):
        return RedisPipe(channel)
    confirms = getattr(channel, "basic_publish_confirm", None)
    # By equality: a bound method is made anew at each look.
    if confirms is not None and channel.basic_publish == confirms and not channel._confirm_selected:
        return AmqpPipe(channel)
    return None


#: Seconds after which messages leave: none is to be late.
FLUSH_AFTER: Final = 0.02

#: Bytes of messages after which they are sent in any case.
MAX_BYTES: Final = 1 << 20

#: Letters that are seen to together although the broker has confirmed each.
SETTLE_BATCH: Final = 50


@dataclass(slots=True)
class InFlightMessage:
    """A run that was published; ``seconds`` is what the entry's ``is_due`` said of the next one.

    ``error`` is why it is not out after all, ``shared`` whether other letters may be to blame.
    """

    entry: RedBeatSchedulerEntry
    claim: Claim
    seconds: float | None
    now: float
    error: Exception | None = None
    shared: bool = False


class Publisher:
    """The letters of one beat, in the order in which they were published.

    ``window`` is how many may be on their way; with 1 each is waited for by itself. So it is with
    transports that cannot do otherwise. What is to be done about a letter is done by and by, for
    many of them in a row: that takes less time than one after the other between two messages.
    """

    def __init__(self, window: int, clock: Callable[[], float]) -> None:
        self._window = window
        self._clock = clock
        self._pipe: Pipe | None = None
        self._producer: Any = None
        #: The operations of one publish, one for each queue it goes to, none for one that was
        #: waited for; and the letter they carry, None for one that failed half-way.
        self._collected: list[tuple[int, InFlightMessage | None]] = []
        #: Those of them that have left, and that the broker has not answered yet.
        self._flushed: list[tuple[int, InFlightMessage | None]] = []
        self._open_pipe: Pipe | None = None
        #: Whether the last publish sent anything; None where nobody can tell.
        self.sent_anything: bool | None = None
        #: Whether there were letters already when the last one was published.
        self._had_others = False
        self._size_before = 0
        self._message: InFlightMessage | None = None
        self._collecting_since = 0.0

    def publishing(self, producer: Any, alone: bool = False) -> Publisher:
        """Return a context in which ``producer`` need not wait for the broker, unless ``alone``."""
        self._open_pipe = None if alone else self._pipe_of(producer)
        self._had_others = bool(self._collected or self._flushed)
        return self

    def __enter__(self) -> None:
        if self._open_pipe is not None:
            self._size_before = self._open_pipe.size
            self._open_pipe.__enter__()

    def __exit__(self, *exc_info: object) -> None:
        pipe, message, operations = self._open_pipe, self._message, 0
        self._open_pipe = self._message = None
        self.sent_anything = None
        if pipe is not None:
            pipe.__exit__(*exc_info)
            operations = pipe.size - self._size_before
            self.sent_anything = operations > 0
        if operations or message is not None:
            if not self._collected:
                self._collecting_since = self._clock()
            self._collected.append((operations, message))

    def add(self, message: InFlightMessage) -> None:
        """Take the run that is published in the context of :meth:`publishing`."""
        self._message = message

    def _pipe_of(self, producer: Any) -> Pipe | None:
        """The pipe to publish through; letters on the way stay with that of their channel."""
        pipe = self._pipe
        if producer is self._producer and (pipe is None or pipe.channel is producer.channel):
            return pipe
        if self._window <= 1 or self._collected or self._flushed:
            return None
        self.close()
        self._producer, self._pipe = producer, pipe_of(producer.channel)
        return self._pipe

    @property
    def shares_errors(self) -> bool:
        """Whether what went wrong with the last letter may be the fault of one before it."""
        return self._pipe is not None and self._pipe.shares_errors and self._had_others

    def should_flush(self, now: float) -> bool:
        """Whether it is time to :meth:`advance`; ``now`` is by the clock."""
        if not self._collected:
            return False
        if now - self._collecting_since > FLUSH_AFTER:
            return True
        count, pipe = len(self._collected), self._pipe
        if pipe is None:
            return count >= SETTLE_BATCH
        # The other half may be on its way.
        return count >= self._window // 2 or pipe.nbytes > MAX_BYTES

    def advance(self) -> list[InFlightMessage]:
        """Have letters leave, and return those that left the last time, as :meth:`deliver` does.

        Mostly the broker has answered these meanwhile, so that nobody waits.
        """
        if self._pipe is None:
            return self.deliver()
        messages = self._wait_for_confirms()
        self._flush()
        return messages

    def deliver(self) -> list[InFlightMessage]:
        """Wait until the broker has answered all letters; return them, with what went wrong.

        A letter is good only when every operation of it is. Takes no longer than a publish may, for
        those that left and once more for the others.
        """
        messages = self._wait_for_confirms()
        if self._collected:
            self._flush()
            messages += self._wait_for_confirms()
        return messages

    def close(self) -> None:
        """Let go of what belongs to the outbox; nothing may be in it."""
        if self._pipe is not None:
            self._pipe.close()
        self._producer = self._pipe = None

    def _flush(self) -> None:
        self._flushed, self._collected = self._collected, []
        if self._pipe is not None:
            self._pipe.leave()

    def _wait_for_confirms(self) -> list[InFlightMessage]:
        """Wait for the answers to the letters that left."""
        flushed, self._flushed = self._flushed, []
        pipe = self._pipe
        results = iter([] if pipe is None else pipe.results())
        messages = []
        for operations, message in flushed:
            errors = operations and list(filter(None, islice(results, operations)))
            if message is None:
                continue
            messages.append(message)
            if errors:
                message.error = errors[0]
                message.shared = pipe is not None and pipe.shares_errors
        return messages
