"""Builds task messages, publishes them, and tracks them until the broker has confirmed them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Protocol

from redbeat.config import LOG_EACH, ensure_conf
from redbeat.entries.decide import Run
from redbeat.entries.definition import TIMES, seconds_of
from redbeat.entries.lazy import evaluated
from redbeat.entries.runs import Nominal
from redbeat.entry import RedBeatSchedulerEntry
from redbeat.printing import get_logger
from redbeat.settings import is_number

from .amqp_pipe import AmqpPipe
from .loading import Attempt
from .redis_pipe import RedisPipe
from .scheduler_protocol import SchedulerProtocol

logger = get_logger("celery.beat")

#: The message header with the entry's key.
#: Only messages of entries whose runs must not overlap have the header ``redbeat_overlap``.
OVERLAP_HEADER = "redbeat_overlap"


#: Kombu retries a failed publish once, without a pause.
#: One retry is enough if the broker had closed an idle connection.
#: If the retry fails too, a later tick sends the run.
ONE_RETRY: Final[dict[str, float]] = {
    "max_retries": 1,
    "interval_start": 0,
    "interval_step": 0,
    "interval_max": 0,
}

#: The timeout options that an entry may set, and their maximum in seconds.
#: The default timeout of a publish attempt is not longer than ``LONGEST_TIMEOUT``.
BOUNDED_OPTIONS = frozenset(("timeout", "confirm_timeout"))
LONGEST_TIMEOUT = 5.0


@dataclass(slots=True)
class TaskMessage:
    """The task name, arguments and options that Celery needs to send a message."""

    name: str
    task: str
    args: Any
    kwargs: Any
    options: dict[str, Any]
    #: True if the task id is computed from the run, False if the entry's options set the task id.
    own_id: bool


def build_message(
    entry: RedBeatSchedulerEntry, instant: Nominal, run: Run | None = None
) -> TaskMessage:
    """Return the message of ``entry`` with the task id and the headers of one run.

    ``instant`` is the scheduled or triggered time of the run. ``run`` is the claimed run, None if
    the message is sent without a claim. The ``task_id`` is computed from the run, so duplicate
    messages of a run have the same task id.

    The message has these headers:

    - ``scheduled_at``: the due time (ISO 8601, UTC)
    - ``periodic_task_name``: the name of the entry
    - ``celery_beat_task``: always True
    - ``coalesced``: the number of missed runs that the run replaces, if any
    - ``triggered``: True for manual runs
    - ``backfilled``: True for backfilled runs

    The entry's options may override the task id and the headers, except ``celery_beat_task``. With
    at-most-once delivery, a publish is never retried. If an argument of the task is a function, the
    message contains the result of the function. Raises :exc:`LazyArgumentError` if a function among
    the arguments raises an error.
    """
    entry_options = sendable_options(entry.options or {})
    options = retry_options(entry_options, run is not None and run.at_most_once)
    headers: dict[str, Any] = {"scheduled_at": instant.iso, "periodic_task_name": entry.name}
    occurrence = instant.iso
    if run is not None and run.trigger is not None and run.trigger.backfilled:
        headers["backfilled"] = True
    elif run is not None and run.trigger is not None:
        headers["triggered"] = True
        occurrence = f"trigger {run.trigger.id}"
    elif run is not None and run.decision is not None and run.decision.missed:
        headers["coalesced"] = run.decision.missed
    if entry.policy_field("overlap") != "allow":
        headers[OVERLAP_HEADER] = entry.key
    if entry_options.get("headers"):
        headers.update(entry_options["headers"])
    headers["celery_beat_task"] = True
    options["headers"] = headers
    task_id = entry_options.get("task_id")
    options["task_id"] = task_id or entry.derived_id(occurrence)
    args, kwargs = evaluated(entry.args, entry.kwargs)
    return TaskMessage(entry.name, entry.task, args, kwargs, options, not task_id)


def plain_message(entry: Any) -> TaskMessage:
    """Return the message of an entry of another class, such as Celery's."""
    options = retry_options(sendable_options(entry.options or {}), at_most_once=False)
    headers = {"periodic_task_name": entry.name, **(options.get("headers") or {})}
    options["headers"] = {**headers, "celery_beat_task": True}
    args, kwargs = evaluated(entry.args, entry.kwargs)
    return TaskMessage(entry.name, entry.task, args, kwargs, options, own_id=False)


def sendable_options(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return message options in which all times have types that ``apply_async`` accepts.

    Invalid values are returned unchanged. An ``eta`` in seconds becomes a ``countdown``, but an
    existing ``countdown`` takes precedence, as in Celery.
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
    """Return ``apply_async`` options that limit how often and how long a publish is tried.

    A publish has two attempts. A publish has only one attempt if ``at_most_once`` is true, or if
    the entry's ``retry_policy`` sets ``max_retries`` to 0. Entries cannot increase the number of
    attempts. ``timeout`` and ``confirm_timeout`` are limited to :data:`LONGEST_TIMEOUT` seconds.
    Other fields of ``retry_policy`` are removed, because kombu would store these fields in the
    connection and apply them to all entries.
    """
    bounded = dict(options)
    for name in BOUNDED_OPTIONS & options.keys():
        if is_number(options[name]):
            bounded[name] = min(options[name], LONGEST_TIMEOUT)
    policy = bounded.pop("retry_policy", None)
    if at_most_once:
        bounded["retry"] = False
    else:
        retries = policy.get("max_retries") if isinstance(policy, Mapping) else None
        bounded["retry_policy"] = {**ONE_RETRY, "max_retries": 0} if retries == 0 else ONE_RETRY
    return bounded


def publish(scheduler: SchedulerProtocol, attempt: Attempt, producer: Any) -> None:
    """Publish the due run of an entry, or its triggered or backfilled run.

    Sets ``attempt.seconds``, the seconds until the next run, unless the run is triggered or
    backfilled.
    """
    entry, run = attempt.entry, attempt.run
    if run.trigger is None:
        if run.options is None:
            attempt.seconds = scheduler.maybe_due(entry, producer=producer)
        else:
            attempt.seconds = scheduler.send_if_due(entry, **run.options)
        return
    if ensure_conf(scheduler.app).log_dispatch == LOG_EACH:
        kind = "backfilled" if run.trigger.backfilled else "triggered"
        logger.info("Scheduler: Sending %s task %s (%s)", kind, entry.name, entry.task)
    scheduler.apply_async(entry, producer=producer, advance=False)
    run.sent = True


class Pipe(Protocol):
    """Collects messages on one channel, and sends them without waiting for each confirmation."""

    channel: Any

    #: Whether an error on the channel may have been caused by an earlier message.
    shares_errors: bool

    @property
    def size(self) -> int:
        """The number of broker operations collected since the last :meth:`flush`."""

    @property
    def nbytes(self) -> int:
        """The size in bytes of the collected messages that this process holds in memory."""

    def __enter__(self) -> None:
        """Start collecting the messages that are published on the channel."""

    def __exit__(self, *exc_info: object) -> None:
        """Stop collecting messages: each later publish on the channel waits for the broker."""

    def flush(self) -> None:
        """Send the collected messages, and do not wait for their confirmations.

        Call this method only if no earlier messages are in flight. This method does not raise
        broker errors; :meth:`results` returns the errors.
        """

    def results(self) -> list[Exception | None]:
        """Wait for the broker; return an error or None for each operation of the last flush.

        This method does not raise broker errors. After this call, no flushed message is in flight.
        """

    def close(self) -> None:
        """Free the resources of the pipe; the channel remains open."""


def pipe_of(channel: Any) -> Pipe | None:
    """Return a :class:`Pipe` for a kombu channel, or None if the channel needs no :class:`Pipe`.

    A Redis channel always needs a :class:`Pipe`. A RabbitMQ channel needs a :class:`Pipe` only if
    RabbitMQ confirms messages, because a publish without confirmation does not wait. No network
    traffic.
    """
    if hasattr(channel, "conn_or_acquire"):
        return RedisPipe(channel)
    confirms = getattr(channel, "basic_publish_confirm", None)
    # Compare with ``==``, because each access to a bound method creates a new object.
    if confirms is not None and channel.basic_publish == confirms and not channel._confirm_selected:
        return AmqpPipe(channel)
    return None


#: Seconds after which collected messages are flushed, so that the messages are not late.
FLUSH_AFTER: Final = 0.02

#: Collected messages are flushed if their total size is more than ``MAX_BYTES`` bytes.
MAX_BYTES: Final = 1 << 20

#: Without a :class:`Pipe`, the beat records the runs of ``SETTLE_BATCH`` messages together.
SETTLE_BATCH: Final = 50


class Publisher:
    """Tracks the published messages of one beat, in order, until the broker has confirmed them.

    ``window`` is the maximum number of messages in flight. If ``window`` is 1, or if the transport
    has no :class:`Pipe`, each publish waits for the broker. The beat records the runs of many
    messages together, which is faster than a request to Redis after each publish.
    """

    def __init__(self, window: int, clock: Callable[[], float]) -> None:
        self._window = window
        self._clock = clock
        self._pipe: Pipe | None = None
        self._producer: Any = None
        #: The number of broker operations and the run of each publish that is not flushed yet.
        #: A publish has one operation per queue, and 0 operations if it waited for the broker.
        #: The run is None if the publish failed after some of its operations.
        self._collected: list[tuple[int, Attempt | None]] = []
        #: The flushed publishes that the broker has not confirmed yet.
        self._flushed: list[tuple[int, Attempt | None]] = []
        self._open_pipe: Pipe | None = None
        #: Whether the last publish had at least one broker operation, None if unknown.
        self.sent_anything: bool | None = None
        #: Whether earlier messages were unconfirmed at the time of the last publish.
        self._had_others = False
        self._size_before = 0
        self._attempt: Attempt | None = None
        self._collecting_since = 0.0

    def publishing(self, producer: Any, alone: bool = False) -> Publisher:
        """Return a context manager for one publish with ``producer``.

        If ``alone`` is true, the publish uses no :class:`Pipe`, but waits for the broker.
        """
        self._open_pipe = None if alone else self._pipe_of(producer)
        self._had_others, self.sent_anything = self.is_busy, False
        return self

    def __enter__(self) -> None:
        if self._open_pipe is not None:
            self._size_before = self._open_pipe.size
            self._open_pipe.__enter__()

    def __exit__(self, *exc_info: object) -> None:
        pipe, attempt, operations = self._open_pipe, self._attempt, 0
        self._open_pipe = self._attempt = None
        self.sent_anything = None
        if pipe is not None:
            pipe.__exit__(*exc_info)
            operations = pipe.size - self._size_before
            self.sent_anything = operations > 0
        if operations or attempt is not None:
            if not self._collected:
                self._collecting_since = self._clock()
            self._collected.append((operations, attempt))

    def add(self, attempt: Attempt) -> None:
        """Set the run whose message is sent in the current :meth:`publishing` context."""
        self._attempt = attempt

    def _pipe_of(self, producer: Any) -> Pipe | None:
        """Return the :class:`Pipe` for a publish, or None if the publish must wait for the broker.

        A new channel gets no :class:`Pipe` while messages of another channel are unconfirmed.
        """
        pipe = self._pipe
        if producer is self._producer and (pipe is None or pipe.channel is producer.channel):
            return pipe
        if self._window <= 1 or self.is_busy:
            return None
        self.close()
        self._producer, self._pipe = producer, pipe_of(producer.channel)
        return self._pipe

    @property
    def shares_errors(self) -> bool:
        """Whether an error of the last publish may have been caused by an earlier message."""
        return self._pipe is not None and self._pipe.shares_errors and self._had_others

    @property
    def is_busy(self) -> bool:
        """Whether there are collected messages, or sent messages without a confirmation."""
        return bool(self._collected or self._flushed)

    def should_flush(self, now: float) -> bool:
        """Return whether to call :meth:`advance` now; ``now`` is in monotonic seconds."""
        if not self._collected:
            return False
        if now - self._collecting_since > FLUSH_AFTER:
            return True
        count, pipe = len(self._collected), self._pipe
        if pipe is None:
            return count >= SETTLE_BATCH
        # Flush when the window is half full, because the other half of the window may be in flight.
        return count >= self._window // 2 or pipe.nbytes > MAX_BYTES

    def advance(self) -> list[Attempt]:
        """Flush the collected messages; return the runs of the previous flush with their errors.

        In most cases this method does not wait, because the broker has already confirmed the
        previous flush.
        """
        if self._pipe is None:
            return self.deliver()
        attempts = self._wait_for_confirms()
        self._flush()
        return attempts

    def deliver(self) -> list[Attempt]:
        """Wait until the broker has confirmed all messages; return their runs with their errors.

        A run has an error if any operation of its message failed. This method takes at most twice
        the timeout of a publish: once for the flushed messages, and once for the collected
        messages.
        """
        attempts = self._wait_for_confirms()
        if self._collected:
            self._flush()
            attempts += self._wait_for_confirms()
        return attempts

    def close(self) -> None:
        """Free the resources of the publisher. Before this call, all messages must be confirmed."""
        if self._pipe is not None:
            self._pipe.close()
        self._producer = self._pipe = None

    def _flush(self) -> None:
        self._flushed, self._collected = self._collected, []
        if self._pipe is not None:
            self._pipe.flush()

    def _wait_for_confirms(self) -> list[Attempt]:
        """Wait for confirmations; return the runs of the flushed messages with their errors."""
        flushed, self._flushed = self._flushed, []
        pipe = self._pipe
        results = iter([] if pipe is None else pipe.results())
        attempts = []
        for operations, attempt in flushed:
            errors = operations and list(filter(None, islice(results, operations)))
            if attempt is None:
                continue
            attempts.append(attempt)
            if errors:
                attempt.error = errors[0]
                attempt.shared = pipe is not None and pipe.shares_errors
        return attempts
