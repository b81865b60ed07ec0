"""Signals of a beat. Connect to them like to Celery's: ``entry_dispatched.connect(receiver)``.

The sender is the scheduler. A receiver must accept ``**kwargs``, because later versions may pass
more arguments. The beat calls receivers between two messages, so a slow receiver delays the next
message. An error in a receiver is logged and has no other effect.

The description of each signal lists the arguments after the colon. All datetimes are in UTC.
``name`` is the name of an entry.
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

#: This beat became the leader. Not sent if the lock is off.
lock_acquired = Signal(name="lock_acquired")

#: This beat lost the lock to another beat, which has the token ``holder``. Not sent when this beat
#: stops and releases the lock itself.
lock_lost = Signal(name="lock_lost", providing_args={"holder"})

#: A message was sent: ``entry``, ``scheduled_at``, ``task_id``, ``triggered`` (True if the run was
#: triggered manually). The run may not be recorded yet.
entry_dispatched = Signal(
    name="entry_dispatched", providing_args={"entry", "scheduled_at", "task_id", "triggered"}
)

#: A message could not be sent: ``name``, ``error``, ``lost`` (False if the beat will try again).
entry_failed = Signal(name="entry_failed", providing_args={"name", "error", "lost"})

#: An entry cannot be read and is quarantined: ``name``, ``reason``.
entry_quarantined = Signal(name="entry_quarantined", providing_args={"name", "reason"})

#: Runs were missed and are skipped: ``entry``, ``count``, ``scheduled_at`` (when the last missed
#: run was due, or when the run that replaces the missed runs was due).
entry_missed = Signal(name="entry_missed", providing_args={"entry", "count", "scheduled_at"})

#: An entry has no runs left: ``entry``.
entry_finished = Signal(name="entry_finished", providing_args={"entry"})

#: The entries of ``beat_schedule`` were written: ``added``, ``changed``, ``removed`` (the number of
#: each).
statics_synced = Signal(name="statics_synced", providing_args={"added", "changed", "removed"})

#: All entries disappeared from Redis: ``count`` (how many there were). The beat writes the entries
#: of ``beat_schedule`` again. Your receiver can save the other entries again.
schedule_lost = Signal(name="schedule_lost", providing_args={"count"})

#: Redis is not available: ``error``.
redis_lost = Signal(name="redis_lost", providing_args={"error"})

#: Redis is available again: ``failures``, the number of failed ticks.
redis_back = Signal(name="redis_back", providing_args={"failures"})


def emit(signal: Any, sender: Any, **arguments: Any) -> None:
    """Send a signal if it has receivers."""
    if signal.receivers:
        signal.send(sender, **arguments)
