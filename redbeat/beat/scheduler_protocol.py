"""Defines the methods of the scheduler that the modules of a beat call."""

from __future__ import annotations

from typing import Any, Protocol

from celery import Celery

from redbeat.config import ensure_conf
from redbeat.entry import RedBeatSchedulerEntry
from redbeat.storage.layout import layout_of
from redbeat.storage.records import Claim


class SchedulerProtocol(Protocol):
    """The methods of the scheduler that a beat calls; subclasses of users may override them."""

    app: Celery
    Entry: type[RedBeatSchedulerEntry]
    max_interval: float

    @property
    def overrides_sending(self) -> bool:
        """Whether user code overrides the sending of messages and may use another channel."""

    @property
    def producer(self) -> Any:
        """The kombu producer of the messages; raises an error if the broker is unavailable."""

    def maybe_due(self, entry: RedBeatSchedulerEntry, **kwargs: Any) -> float | None:
        """Send the entry if it is due; return the seconds until it is due again."""

    def send_if_due(self, entry: RedBeatSchedulerEntry, **kwargs: Any) -> float | None:
        """Send a claimed entry if it is due; subclasses must not override this method."""

    def apply_async(self, entry: RedBeatSchedulerEntry, **kwargs: Any) -> Any:
        """Send the task of an entry."""

    def check_broker(self) -> None:
        """Check that the broker is available; raise an error if it is not."""

    def is_due(self, entry: RedBeatSchedulerEntry) -> tuple[bool, float | None]:
        """Return whether the entry is due, and the seconds until it is due again."""

    def reserve(self, entry: RedBeatSchedulerEntry) -> RedBeatSchedulerEntry:
        """Return the entry as it is after the run, with a new last run and run count."""

    def broker_failed(self, error: BaseException) -> bool:
        """Return whether an error means that the broker is unavailable; if so, disconnect."""


def name_of(scheduler: SchedulerProtocol, claim: Claim) -> str:
    """Return the name of a claimed entry, even if the entry cannot be loaded."""
    return layout_of(ensure_conf(scheduler.app)).name_of(claim.key)
