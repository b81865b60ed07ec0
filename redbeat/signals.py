"""Signals of a beat, of the same kind as Celery's: ``entry_dispatched.connect(receiver)``.

The sender is the scheduler; a receiver takes ``**kwargs``, since more may be told later. Receivers
run in the beat, between two messages: what they do delays the next one. One that raises is logged
and harms nothing. Instants are in UTC, names are those of entries.
"""

from __future__ import annotations

from typing import Any

from celery.utils.dispatch import Signal

__all__ = (
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
    "schedule_lost",
    "statics_synced",
)

#: This beat leads now. Never sent where there is no lock.
lock_acquired = Signal(name="lock_acquired")

#: Another beat leads now: ``holder``, its token. Not sent when a beat stops and gives the lock up.
lock_lost = Signal(name="lock_lost", providing_args={"holder"})

#: A message was sent: ``entry``, ``scheduled_at``, ``task_id``, ``triggered`` (whether it is beside
#: the schedule). It may not be recorded yet.
entry_dispatched = Signal(
    name="entry_dispatched", providing_args={"entry", "scheduled_at", "task_id", "triggered"}
)

#: A message could not be sent: ``name``, ``error``, ``lost`` (False when it is tried again).
entry_failed = Signal(name="entry_failed", providing_args={"name", "error", "lost"})

#: An entry cannot be read and is set aside: ``name``, ``reason``.
entry_quarantined = Signal(name="entry_quarantined", providing_args={"name", "reason"})

#: Runs that never were, nor will be: ``entry``, ``count``, ``scheduled_at`` (the last of them, or
#: the run that makes up for them).
entry_missed = Signal(name="entry_missed", providing_args={"entry", "count", "scheduled_at"})

#: Nothing is left to run: ``entry``.
entry_finished = Signal(name="entry_finished", providing_args={"entry"})

#: The entries of ``beat_schedule`` are stored: ``added``, ``changed``, ``removed``, numbers.
statics_synced = Signal(name="statics_synced", providing_args={"added", "changed", "removed"})

#: All entries vanished from Redis: ``count``, how many there were. Those of ``beat_schedule`` are
#: written again by the beat; a program that keeps others elsewhere can save them now.
schedule_lost = Signal(name="schedule_lost", providing_args={"count"})

#: Redis does not answer: ``error``.
redis_lost = Signal(name="redis_lost", providing_args={"error"})

#: Redis answers again: ``failures``, how many ticks failed.
redis_back = Signal(name="redis_back", providing_args={"failures"})


def emit(signal: Any, sender: Any, **told: Any) -> None:
    """Send a signal if anybody listens."""
    if signal.receivers:
        signal.send(sender, **told)
