"""Signals of a beat: connect receivers with ``entry_dispatched.connect(receiver)``, as in Celery.

Workers send ``run_succeeded`` and ``run_failed`` if you called ``redbeat.worker.enable(app)``; the
sender is the app. The sender of all signals except ``run_succeeded`` and ``run_failed`` is the
scheduler. A receiver must accept ``**kwargs``, because later versions of RedBeat may pass
additional arguments. The beat calls receivers between two messages, so a slow receiver delays the
next message. An error in a receiver is logged and has no other effect.

All datetimes in arguments are in UTC. The argument ``name`` is the name of an entry.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, overload

from celery.utils.dispatch import Signal

if TYPE_CHECKING:
    from redbeat.entries.runs import RunResult
    from redbeat.entry import RedBeatSchedulerEntry as Entry

    #: The type of a receiver, to which a signal passes its arguments by name.
    R_contra = TypeVar("R_contra", bound=Callable[..., Any], contravariant=True)
    F = TypeVar("F", bound=Callable[..., Any])

    class TypedSignal(Protocol[R_contra]):
        """The type of a Celery signal; type checkers use this type to check receivers."""

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

    class Lost(Protocol):
        def __call__(
            self, *, signal: Any, sender: Any, error: BaseException, **more: Any
        ) -> Any: ...

    class Back(Protocol):
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


#: A beat became the leader; ``lock_acquired`` is not sent if the lock is off.
lock_acquired: TypedSignal[Receiver] = Signal(name="lock_acquired")

#: A beat lost the lock to another beat; the argument ``holder`` is the token of the other beat.
#: ``lock_lost`` is not sent when a beat stops and releases the lock itself.
lock_lost: TypedSignal[LostLock] = Signal(name="lock_lost")

#: A message was sent; the arguments are ``entry``, ``scheduled_at``, ``task_id`` and ``triggered``.
#: ``triggered`` is True if the run was triggered manually.
#: The beat may record the run in Redis after ``entry_dispatched``.
entry_dispatched: TypedSignal[Dispatched] = Signal(name="entry_dispatched")

#: A message could not be sent; the arguments are ``name``, ``error`` and ``lost``.
#: ``lost`` is False if the beat will try to send the message again.
entry_failed: TypedSignal[Failed] = Signal(name="entry_failed")

#: An unreadable entry was quarantined; the arguments are ``name`` and ``reason``.
entry_quarantined: TypedSignal[Quarantined] = Signal(name="entry_quarantined")

#: Runs were missed and will not be sent; the arguments are ``entry``, ``count``, ``scheduled_at``.
#: ``scheduled_at`` is the nominal instant of the last missed run, or of the run sent instead.
entry_missed: TypedSignal[Missed] = Signal(name="entry_missed")

#: An entry has no runs left; the argument is ``entry``.
entry_finished: TypedSignal[Finished] = Signal(name="entry_finished")

#: The entries of ``beat_schedule`` were written to Redis.
#: The arguments ``added``, ``changed`` and ``removed`` are numbers of entries.
statics_synced: TypedSignal[Synced] = Signal(name="statics_synced")

#: All entries disappeared from Redis; the argument ``count`` is the number of lost entries.
#: The beat saves the entries of ``beat_schedule``; your receiver can save the other lost entries.
schedule_lost: TypedSignal[LostSchedule] = Signal(name="schedule_lost")

#: A run succeeded; the arguments are ``name``, ``task_id``, ``scheduled_at`` and ``result``.
#: ``result`` is a :class:`~redbeat.RunResult`.
#: A worker sends ``run_succeeded`` after Redis has stored the result.
run_succeeded: TypedSignal[Ended] = Signal(name="run_succeeded")

#: A run failed; the arguments are those of ``run_succeeded``.
run_failed: TypedSignal[Ended] = Signal(name="run_failed")

#: The broker is not available; the argument is ``error``.
#: ``broker_lost`` is sent once per outage of the broker.
broker_lost: TypedSignal[Lost] = Signal(name="broker_lost")

#: The broker is available again after an outage.
#: The argument ``failures`` is the number of failed attempts to send a message.
broker_back: TypedSignal[Back] = Signal(name="broker_back")

#: Redis is not available; the argument is ``error``.
redis_lost: TypedSignal[Lost] = Signal(name="redis_lost")

#: Redis is available again; the argument ``failures`` is the number of failed ticks.
redis_back: TypedSignal[Back] = Signal(name="redis_back")


def emit(signal: Any, sender: Any, **arguments: Any) -> None:
    """Send a signal if the signal has receivers."""
    if signal.receivers:
        signal.send(sender, **arguments)
