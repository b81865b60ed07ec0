"""Publishes runs that are already held or recorded, in windows, and waits for confirmations."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from itertools import islice
from typing import Any, Final, TypeAlias

from redbeat.beat.broker import is_refusal
from redbeat.beat.pipes import AmqpPipe, RedisPipe
from redbeat.entries.run import Run
from redbeat.errors import cause_of

from .one_step import Watch

#: Collected messages are sent after this many seconds, or once they have this many bytes.
FLUSH_AFTER: Final = 0.02
MAX_BYTES: Final = 1 << 20

#: How many entries may have their next message published while no other is in flight.
MOST_ALONE: Final = 1000


#: Collects messages on one channel, and sends them without waiting for each confirmation.
Pipe: TypeAlias = "RedisPipe | AmqpPipe"


class StoppedError(Exception):
    """A signal or another ``BaseException`` ended the publish of a run."""


def pipe_of(channel: Any) -> Pipe | None:
    """A pipe for a kombu channel, None if each publish waits for the broker.

    RabbitMQ needs one only if it confirms messages: without, a publish doesn't wait. No network
    traffic.
    """
    if hasattr(channel, "conn_or_acquire"):
        return RedisPipe(channel)
    confirms = getattr(channel, "basic_publish_confirm", None)
    # ``==``, because each access to a bound method creates a new object.
    if confirms is not None and channel.basic_publish == confirms and not channel._confirm_selected:
        return AmqpPipe(channel)
    return None


class SharedError(Exception):
    """A run's channel failed, perhaps because of another message.

    The run is no failure of its entry, unless the broker is down: publish it again at once, within
    the same hold. The sender then sends it while no other message is in flight. The broker's error
    is the ``__cause__``.
    """


class Sender:
    """Publishes runs through kombu, and lets messages wait for their confirmations together.

    At most ``window`` of them; 1 waits for the broker after each message. ``clock`` returns
    monotonic seconds.
    """

    def __init__(self, window: int, clock: Callable[[], float]) -> None:
        self._window = window
        self._clock = clock
        self._pipe: Pipe | None = None
        self._producer: Any = None
        #: Each publish that isn't confirmed yet: its number of broker operations (one per queue,
        #: none if it waited for the broker) and its run.
        self._collected: list[tuple[int, Run]] = []
        self._settled: list[Run] = []
        #: Whether anything was published that :meth:`settle` hasn't returned yet.
        self.busy = False
        self._collecting_since = 0.0
        self._alone: set[str] = set()

    # -- publishing ----------------------------------------------------------------------------

    def publish(
        self,
        run: Run,
        call: Callable[[], Any],
        producer: Any,
        *,
        once: bool = False,
        own: bool = False,
    ) -> None:
        """Call ``call``, which publishes the run with ``producer``; don't wait for the broker.

        The run comes back from :meth:`settle` or :meth:`finish`, finished:

        - ``run.error`` None and ``run.left``: sent; ``run.task_id`` is the id that the call
          returned.
        - ``run.error`` None and not ``run.left``: the call sent nothing.
        - ``run.error`` and not ``run.left``: it failed, and certainly nothing left.
        - ``run.error`` and ``run.left``: it failed, and something may have left (keep the hold).
          With ``run.seen`` a message did leave, unless the error is one of the broker.

        ``once`` publishes outside the window and repeats nothing (at most once). ``own`` means that
        the call runs code of users or libraries (``OwnCode.part_in``). ``call`` may raise any
        ``Exception``; this method raises none.
        """
        run.left, run.error = False, None
        pipe, before = None, 0
        try:
            pipe = None if once or run.rule.key in self._alone else self._pipe_of(producer)
            before = pipe.size if pipe is not None else 0
            watch = Watch(producer, own)
            with pipe or nullcontext():
                watch.call(run, call)
        except Exception as error:
            run.error = self._blamed(error, pipe)
        except BaseException as error:  # the pipe may already have its message
            run.error = StoppedError(repr(error))
            raise
        finally:
            self._collect(pipe.size - before if pipe is not None else 0, run)

    def collects(self, run: Run, producer: Any) -> bool:
        """Whether the next message may be rendered: it's collected, for a Redis broker."""
        return run.rule.key not in self._alone and isinstance(self._pipe_of(producer), RedisPipe)

    def push(self, run: Run, commands: list[list[Any]]) -> None:
        """Collect a run's rendered message, after :meth:`collects` was true."""
        assert isinstance(self._pipe, RedisPipe)
        run.left, run.error = True, None
        for command in commands:
            self._pipe.push(command)
        self._collect(len(commands), run)

    @property
    def made(self) -> list[list[Any]]:
        return self._pipe.commands if isinstance(self._pipe, RedisPipe) else []

    def _blamed(self, error: Exception, pipe: Pipe | None) -> Exception:
        """The error of a call, as a :exc:`SharedError` if another message may be to blame.

        RabbitMQ closes the channel of a bad message, and py-amqp raises that in a later publish.
        """
        others = any(operations for operations, _ in self._collected)
        return _shared(error) if others and pipe and pipe.shares_errors else error

    def _collect(self, operations: int, run: Run) -> None:
        run.left = run.left or operations > 0  # perhaps not through ``basic_publish``
        if not self._collected:
            self._collecting_since = self._clock()
        self._collected.append((operations, run))
        self.busy = True
        if self._is_full():
            self._confirm()

    def _pipe_of(self, producer: Any) -> Pipe | None:
        """The pipe for a publish, None if it must wait for the broker.

        A new channel gets no pipe while messages of another one are unconfirmed.
        """
        pipe = self._pipe
        if producer is self._producer and (pipe is None or pipe.channel is producer.channel):
            return pipe
        if self._window <= 1 or self._collected:
            return None
        self.close()
        self._producer, self._pipe = producer, pipe_of(producer.channel)
        return self._pipe

    # -- settling ------------------------------------------------------------------------------

    def settle(self) -> list[Run]:
        """The runs that are finished, in order.

        Waits for the broker if the window is full or its first message is 20 ms old.
        """
        if self._is_full():
            self._confirm()
        settled, self._settled = self._settled, []
        self.busy = bool(self._collected)
        return settled

    def finish(self) -> list[Run]:
        """Wait for all confirmations, at most a publish's timeout; return all finished runs."""
        self._confirm()
        return self.settle()

    @property
    def runs(self) -> list[Run]:
        return [*self._settled, *(run for _, run in self._collected)]

    def close(self) -> None:
        """Free the connection; call :meth:`finish` first."""
        if self._pipe is not None:
            self._pipe.close()
        self._producer = self._pipe = None

    def _is_full(self) -> bool:
        if not self._collected:
            return False
        if self._clock() - self._collecting_since > FLUSH_AFTER:
            return True
        size = 0 if self._pipe is None else self._pipe.nbytes
        return len(self._collected) >= self._window or size > MAX_BYTES

    def _confirm(self) -> None:
        results = iter(self._pipe.results() if self._pipe is not None else ())
        collected, self._collected = self._collected, []
        shared = len(collected) > 1 and self._pipe is not None and self._pipe.shares_errors
        for operations, run in collected:
            self._settle(run, list(islice(results, operations)), shared)

    def _settle(self, run: Run, results: list[Exception | None], shared: bool) -> None:
        error = next(filter(None, results), None)
        if error is not None:
            run.seen = False
            run.left = shared or None in results or not is_refusal(error)
            run.error = run.error or (_shared(error) if shared else error)
        key = run.rule.key
        if isinstance(run.error, SharedError) and len(self._alone) < MOST_ALONE:
            self._alone.add(key)
        elif run.error is None:
            self._alone.discard(key)
        self._settled.append(run)


def _shared(error: Exception) -> SharedError:
    cause = cause_of(error)
    shared = SharedError(str(cause) or repr(cause))
    shared.__cause__ = cause
    return shared
