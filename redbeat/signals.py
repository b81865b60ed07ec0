"""Signals of a beat: connect receivers with ``entry_dispatched.connect(receiver)``, as in Celery.

The sender is the scheduler. Only ``run_succeeded`` and ``run_failed`` come from workers, if you
called ``redbeat.worker.enable(app)``; their sender is the app. A receiver must accept ``**kwargs``,
because later versions of RedBeat may pass more arguments. The beat calls receivers between two
messages, so a slow one delays the next message. An error in a receiver is logged and has no other
effect.

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
        """A Celery signal, for type checkers that refuse untyped decorators."""

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


#: A beat became the leader. Not sent if the lock is off.
lock_acquired = _signal("lock_acquired")

#: A beat lost the lock to another beat, whose token is ``holder``. Not sent when a beat stops and
#: releases the lock itself.
lock_lost = _signal("lock_lost")

#: A message was sent. Its arguments are ``entry``, ``scheduled_at`` (the nominal time of the run, a
#: datetime), ``task_id``, and ``triggered``, which is True if the run was triggered manually. The
#: beat may record the run in Redis only after this signal.
entry_dispatched = _signal("entry_dispatched")

#: A message could not be sent. Its arguments are ``name``, ``error`` (an exception), and ``lost``,
#: which is False if the beat will try again.
entry_failed = _signal("entry_failed")

#: An unreadable entry was quarantined. Its arguments are ``name`` and ``reason``, a text.
entry_quarantined = _signal("entry_quarantined")

#: Runs were missed and will not be sent. The arguments are ``entry``, ``count`` (how many), and
#: ``scheduled_at``, the nominal instant of the last missed run, or of the run sent instead.
entry_missed = _signal("entry_missed")

#: An entry, ``entry``, has no runs left.
entry_finished = _signal("entry_finished")

#: The entries of ``beat_schedule`` were written to Redis. ``added``, ``changed`` and ``removed``
#: are numbers of entries.
statics_synced = _signal("statics_synced")

#: All entries disappeared from Redis; ``count`` is how many there were. The beat saves the entries
#: of ``beat_schedule``; your receiver can save the others.
schedule_lost = _signal("schedule_lost")

#: A run succeeded. A worker sends this after Redis has stored the result. The arguments are
#: ``name``, ``task_id``, ``scheduled_at`` (a datetime or None), and ``result``, a
#: :class:`~redbeat.RunResult`.
run_succeeded = _signal("run_succeeded")

#: A run failed. A worker sends this after Redis has stored the result, with the arguments of
#: ``run_succeeded``.
run_failed = _signal("run_failed")

#: The broker is not available; ``error`` is the exception. Sent once per outage.
broker_lost = _signal("broker_lost")

#: The broker is available again, after ``failures`` failed attempts to send a message.
broker_back = _signal("broker_back")

#: Redis is not available; ``error`` is the exception.
redis_lost = _signal("redis_lost")

#: Redis is available again, after ``failures`` failed ticks.
redis_back = _signal("redis_back")


def emit(signal: Any, sender: Any, **arguments: Any) -> None:
    if signal.receivers:
        signal.send(sender, **arguments)
