"""Signals of a beat: connect receivers with ``entry_dispatched.connect(receiver)``, as in Celery.

Workers send ``run_succeeded`` and ``run_failed`` if you called ``redbeat.worker.enable(app)``; the
sender is the app. The sender of all signals except ``run_succeeded`` and ``run_failed`` is the
scheduler. A receiver must accept ``**kwargs``, because later versions of RedBeat may pass
additional arguments. The beat calls receivers between two messages, so a slow receiver delays the
next message. An error in a receiver is logged and has no other effect.

All datetimes in arguments are in UTC. The argument ``name`` is the name of an entry, ``entry`` a
:class:`~redbeat.RedBeatSchedulerEntry`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, overload

from celery.utils.dispatch import Signal

if TYPE_CHECKING:
    R = TypeVar("R", bound=Callable[..., Any])

    class TypedSignal(Protocol):
        """A Celery signal, for programs that let a type checker refuse untyped decorators."""

        receivers: Any

        @overload
        def connect(self, receiver: R, **options: Any) -> R: ...
        @overload
        def connect(self, **options: Any) -> Callable[[R], R]: ...
        def disconnect(self, receiver: Any, **options: Any) -> Any: ...
        def send(self, sender: Any, **arguments: Any) -> Any: ...


def _signal(name: str) -> TypedSignal:
    signal: TypedSignal = Signal(name=name)
    return signal


#: A beat became the leader; ``lock_acquired`` is not sent if the lock is off.
lock_acquired = _signal("lock_acquired")

#: A beat lost the lock to another beat, whose token is ``holder``.
#: ``lock_lost`` is not sent when a beat stops and releases the lock itself.
lock_lost = _signal("lock_lost")

#: A message was sent. Its arguments are ``entry``, ``scheduled_at`` (the nominal time of the run, a
#: datetime), ``task_id``, and ``triggered``, which is True if the run was triggered manually. The
#: beat may record the run in Redis after ``entry_dispatched``.
entry_dispatched = _signal("entry_dispatched")

#: A message could not be sent. Its arguments are ``name``, ``error`` (an exception), and ``lost``,
#: which is False if the beat will try to send the message again.
entry_failed = _signal("entry_failed")

#: An unreadable entry was quarantined. Its arguments are ``name`` and ``reason``, a text.
entry_quarantined = _signal("entry_quarantined")

#: Runs were missed and will not be sent. The arguments are ``entry``, ``count`` (their number), and
#: ``scheduled_at``, the nominal instant of the last missed run, or of the run sent instead.
entry_missed = _signal("entry_missed")

#: An entry, ``entry``, has no runs left.
entry_finished = _signal("entry_finished")

#: The entries of ``beat_schedule`` were written to Redis. ``added``, ``changed`` and ``removed``
#: are numbers of entries.
statics_synced = _signal("statics_synced")

#: All entries disappeared from Redis; ``count`` is their number. The beat saves the entries of
#: ``beat_schedule``; your receiver can save the other lost entries.
schedule_lost = _signal("schedule_lost")

#: A run succeeded; a worker sends ``run_succeeded`` after Redis has stored the result. The
#: arguments are ``name``, ``task_id``, ``scheduled_at`` (a datetime or None), and ``result``, a
#: :class:`~redbeat.RunResult`.
run_succeeded = _signal("run_succeeded")

#: A run failed; a worker sends ``run_failed`` after Redis has stored the result. The arguments are
#: those of ``run_succeeded``.
run_failed = _signal("run_failed")

#: The broker is not available; ``error`` is the exception. ``broker_lost`` is sent once per outage
#: of the broker.
broker_lost = _signal("broker_lost")

#: The broker is available again, after ``failures`` failed attempts to send a message.
broker_back = _signal("broker_back")

#: Redis is not available; ``error`` is the exception.
redis_lost = _signal("redis_lost")

#: Redis is available again, after ``failures`` failed ticks.
redis_back = _signal("redis_back")


def emit(signal: Any, sender: Any, **arguments: Any) -> None:
    """Send a signal if the signal has receivers."""
    if signal.receivers:
        signal.send(sender, **arguments)
