"""Signals of a beat. Connect receivers as in Celery: ``entry_dispatched.connect(receiver)``.

The sender is the scheduler. ``run_succeeded`` and ``run_failed`` are sent by workers after
``redbeat.worker.enable(app)``; their sender is the app. A receiver must accept ``**kwargs``,
because later versions may pass more arguments. The beat calls receivers between two messages, so a
slow receiver delays the next message. An error in a receiver is logged and has no other effect.

The description of each signal lists the arguments after "with". All datetimes are in UTC.
``name`` is the name of an entry.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, overload

from celery.utils.dispatch import Signal

if TYPE_CHECKING:
    from redbeat.entries.runs import RunResult
    from redbeat.entry import RedBeatSchedulerEntry as Entry

    #: A receiver, called with the arguments of a signal by name.
    R_contra = TypeVar("R_contra", bound=Callable[..., Any], contravariant=True)
    F = TypeVar("F", bound=Callable[..., Any])

    class TypedSignal(Protocol[R_contra]):
        """A signal of Celery for type checkers, which compare receivers with its arguments."""

        name: str
        receivers: Any

        @overload
        def connect(self, receiver: R_contra, **options: Any) -> Any: ...
        @overload
        def connect(self, **options: Any) -> Callable[[F], F]: ...
        def disconnect(self, receiver: Any = None, **options: Any) -> Any: ...
        def send(self, sender: Any, **arguments: Any) -> Any: ...

    class Receiver(Protocol):
        def __call__(self, *, signal: Any, sender: Any, **more: Any) -> Any: ...

    class LostLock(Protocol):
        def __call__(self, *, signal: Any, sender: Any, holder: str, **more: Any) -> Any: ...

    class Dispatched(Protocol):
        def __call__(
            self,
            *,
            signal: Any,
            sender: Any,
            entry: Entry,
            scheduled_at: datetime,
            task_id: str,
            triggered: bool,
            **more: Any,
        ) -> Any: ...

    class Failed(Protocol):
        def __call__(
            self,
            *,
            signal: Any,
            sender: Any,
            name: str,
            error: BaseException,
            lost: bool,
            **more: Any,
        ) -> Any: ...

    class Quarantined(Protocol):
        def __call__(
            self, *, signal: Any, sender: Any, name: str, reason: str, **more: Any
        ) -> Any: ...

    class Missed(Protocol):
        def __call__(
            self,
            *,
            signal: Any,
            sender: Any,
            entry: Entry,
            count: int,
            scheduled_at: datetime | None,
            **more: Any,
        ) -> Any: ...

    class Finished(Protocol):
        def __call__(self, *, signal: Any, sender: Any, entry: Entry, **more: Any) -> Any: ...

    class Synced(Protocol):
        def __call__(
            self, *, signal: Any, sender: Any, added: int, changed: int, removed: int, **more: Any
        ) -> Any: ...

    class LostSchedule(Protocol):
        def __call__(self, *, signal: Any, sender: Any, count: int, **more: Any) -> Any: ...

    class LostRedis(Protocol):
        def __call__(
            self, *, signal: Any, sender: Any, error: BaseException, **more: Any
        ) -> Any: ...

    class FoundRedis(Protocol):
        def __call__(self, *, signal: Any, sender: Any, failures: int, **more: Any) -> Any: ...

    class Ended(Protocol):
        def __call__(
            self,
            *,
            signal: Any,
            sender: Any,
            name: str,
            task_id: str,
            scheduled_at: datetime | None,
            result: RunResult,
            **more: Any,
        ) -> Any: ...


__all__ = (
    "broker_back",
    "broker_lost",
    "emit",
    "entry_dispatched",
    "entry_failed",
    "entry_finished",
    "entry_missed",
    "entry_quarantined",
    "lock_acquired",
    "lock_lost",
    "redis_back",
    "redis_lost",
    "run_failed",
    "run_succeeded",
    "schedule_lost",
    "statics_synced",
)

#: This beat became the leader. Not sent if the lock is off.
lock_acquired: TypedSignal[Receiver] = Signal(name="lock_acquired")

#: This beat lost the lock to another beat, which has the token ``holder``. Not sent when this beat
#: stops and releases the lock itself.
lock_lost: TypedSignal[LostLock] = Signal(name="lock_lost", providing_args={"holder"})

#: A message was sent, with ``entry``, ``scheduled_at``, ``task_id``, ``triggered`` (True if the run
#: was triggered manually). The run may not be recorded yet.
entry_dispatched: TypedSignal[Dispatched] = Signal(
    name="entry_dispatched", providing_args={"entry", "scheduled_at", "task_id", "triggered"}
)

#: A message could not be sent, with ``name``, ``error``, ``lost`` (False if the beat will try
#: again).
entry_failed: TypedSignal[Failed] = Signal(
    name="entry_failed", providing_args={"name", "error", "lost"}
)

#: An entry cannot be read and is quarantined, with ``name``, ``reason``.
entry_quarantined: TypedSignal[Quarantined] = Signal(
    name="entry_quarantined", providing_args={"name", "reason"}
)

#: Runs were missed and are skipped, with ``entry``, ``count``, ``scheduled_at`` (when the last
#: missed run was due, or when the run that replaces the missed runs was due).
entry_missed: TypedSignal[Missed] = Signal(
    name="entry_missed", providing_args={"entry", "count", "scheduled_at"}
)

#: An entry has no runs left, with ``entry``.
entry_finished: TypedSignal[Finished] = Signal(name="entry_finished", providing_args={"entry"})

#: The entries of ``beat_schedule`` were written, with ``added``, ``changed``, ``removed`` (the
#: number of each).
statics_synced: TypedSignal[Synced] = Signal(
    name="statics_synced", providing_args={"added", "changed", "removed"}
)

#: All entries disappeared from Redis, with ``count`` (how many there were). The beat writes the
#: entries of ``beat_schedule`` again. Your receiver can save the other entries again.
schedule_lost: TypedSignal[LostSchedule] = Signal(name="schedule_lost", providing_args={"count"})

#: A run succeeded, with ``name``, ``task_id``, ``scheduled_at``, ``result``, the
#: :class:`~redbeat.RunResult`. Sent by the worker after Redis recorded the result.
run_succeeded: TypedSignal[Ended] = Signal(
    name="run_succeeded", providing_args={"name", "task_id", "scheduled_at", "result"}
)

#: A run failed, with the same arguments as for ``run_succeeded``.
run_failed: TypedSignal[Ended] = Signal(
    name="run_failed", providing_args={"name", "task_id", "scheduled_at", "result"}
)

#: The broker is not available, with ``error``. Sent once per outage.
broker_lost = Signal(name="broker_lost", providing_args={"error"})

#: The broker is available again, with ``failures``, the number of failed attempts to send a
#: message.
broker_back = Signal(name="broker_back", providing_args={"failures"})

#: Redis is not available, with ``error``.
redis_lost: TypedSignal[LostRedis] = Signal(name="redis_lost", providing_args={"error"})

#: Redis is available again, with ``failures``, the number of failed ticks.
redis_back: TypedSignal[FoundRedis] = Signal(name="redis_back", providing_args={"failures"})


def emit(signal: Any, sender: Any, **arguments: Any) -> None:
    """Send a signal if it has receivers."""
    if signal.receivers:
        signal.send(sender, **arguments)
