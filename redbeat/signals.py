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
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, overload

from celery.utils.dispatch import Signal

if TYPE_CHECKING:
    from redbeat.entries.runs import RunResult
    from redbeat.entry import RedBeatSchedulerEntry as Entry

    #: The type of a receiver, to which a signal passes its arguments by name.
    R = TypeVar("R", bound=Callable[..., Any])
    R_contra = TypeVar("R_contra", bound=Callable[..., Any], contravariant=True)

    class TypedSignal(Protocol[R_contra]):
        """The type of a Celery signal; type checkers use this type to check receivers."""

        name: str
        receivers: Any

        @overload
        def connect(self, receiver: R_contra, **options: Any) -> Any: ...
        @overload
        def connect(self, **options: Any) -> Callable[[R], R]: ...
        def disconnect(self, receiver: Any = None, **options: Any) -> Any: ...
        def send(self, sender: Any, **arguments: Any) -> Any: ...


def _signal(receiver: R) -> TypedSignal[R]:
    """Return the signal whose name, text and arguments are those of a receiver."""
    plain = Signal(name=receiver.__name__)
    update_wrapper(plain, receiver)
    signal: TypedSignal[R] = plain
    return signal


@_signal
def lock_acquired(*, signal: Any, sender: Any, **more: Any) -> Any:
    """A beat became the leader; ``lock_acquired`` is not sent if the lock is off."""


@_signal
def lock_lost(*, signal: Any, sender: Any, holder: str, **more: Any) -> Any:
    """A beat lost the lock to another beat, whose token is ``holder``.

    ``lock_lost`` is not sent when a beat stops and releases the lock itself.
    """


@_signal
def entry_dispatched(
    *,
    signal: Any,
    sender: Any,
    entry: Entry,
    scheduled_at: datetime,
    task_id: str,
    triggered: bool,
    **more: Any,
) -> Any:
    """A message was sent.

    ``triggered`` is True if the run was triggered manually. The beat may record the run in Redis
    after ``entry_dispatched``.
    """


@_signal
def entry_failed(
    *, signal: Any, sender: Any, name: str, error: BaseException, lost: bool, **more: Any
) -> Any:
    """A message could not be sent.

    ``lost`` is False if the beat will try to send the message again.
    """


@_signal
def entry_quarantined(*, signal: Any, sender: Any, name: str, reason: str, **more: Any) -> Any:
    """An unreadable entry was quarantined."""


@_signal
def entry_missed(
    *,
    signal: Any,
    sender: Any,
    entry: Entry,
    count: int,
    scheduled_at: datetime | None,
    **more: Any,
) -> Any:
    """Runs were missed and will not be sent.

    ``scheduled_at`` is the nominal instant of the last missed run, or of the run sent instead.
    """


@_signal
def entry_finished(*, signal: Any, sender: Any, entry: Entry, **more: Any) -> Any:
    """An entry has no runs left."""


@_signal
def statics_synced(
    *, signal: Any, sender: Any, added: int, changed: int, removed: int, **more: Any
) -> Any:
    """The entries of ``beat_schedule`` were written to Redis.

    ``added``, ``changed`` and ``removed`` are numbers of entries.
    """


@_signal
def schedule_lost(*, signal: Any, sender: Any, count: int, **more: Any) -> Any:
    """All entries disappeared from Redis; ``count`` is their number.

    The beat saves the entries of ``beat_schedule``; your receiver can save the other lost entries.
    """


@_signal
def run_succeeded(
    *,
    signal: Any,
    sender: Any,
    name: str,
    task_id: str,
    scheduled_at: datetime | None,
    result: RunResult,
    **more: Any,
) -> Any:
    """A run succeeded; a worker sends ``run_succeeded`` after Redis has stored the result."""


@_signal
def run_failed(
    *,
    signal: Any,
    sender: Any,
    name: str,
    task_id: str,
    scheduled_at: datetime | None,
    result: RunResult,
    **more: Any,
) -> Any:
    """A run failed; a worker sends ``run_failed`` after Redis has stored the result."""


@_signal
def broker_lost(*, signal: Any, sender: Any, error: BaseException, **more: Any) -> Any:
    """The broker is not available.

    ``broker_lost`` is sent once per outage of the broker.
    """


@_signal
def broker_back(*, signal: Any, sender: Any, failures: int, **more: Any) -> Any:
    """The broker is available again, after ``failures`` failed attempts to send a message."""


@_signal
def redis_lost(*, signal: Any, sender: Any, error: BaseException, **more: Any) -> Any:
    """Redis is not available."""


@_signal
def redis_back(*, signal: Any, sender: Any, failures: int, **more: Any) -> Any:
    """Redis is available again, after ``failures`` failed ticks."""


def emit(signal: Any, sender: Any, **arguments: Any) -> None:
    """Send a signal if the signal has receivers."""
    if signal.receivers:
        signal.send(sender, **arguments)
