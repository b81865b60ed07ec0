"""What a beat asks of the scheduler, and what it owes: runs that are recorded and not yet sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from celery.utils.log import get_logger

from redbeat.config import ensure_conf
from redbeat.entry import RedBeatSchedulerEntry
from redbeat.storage.records import Claim, Completion

__all__ = ("Hooks", "Promise", "name_of")

logger = get_logger("celery.beat")


class Hooks(Protocol):
    """What a beat asks of the scheduler, which users subclass."""

    app: Any
    Entry: type[RedBeatSchedulerEntry]
    max_interval: float

    @property
    def producer(self) -> Any:
        """The producer to publish with; raises when the broker is away."""

    def maybe_due(self, entry: RedBeatSchedulerEntry, **kwargs: Any) -> float | None:
        """Send the entry if it is due; return the seconds until it is due again."""

    def send_if_due(self, entry: RedBeatSchedulerEntry, **kwargs: Any) -> float | None:
        """Do what ``maybe_due`` does for a claimed entry, where no subclass has a say in it."""

    def apply_async(self, entry: RedBeatSchedulerEntry, **kwargs: Any) -> Any:
        """Send the task of an entry."""

    def check_broker(self) -> None:
        """Make sure that the broker is there and its connection fresh; raises when it is away."""

    def is_due(self, entry: RedBeatSchedulerEntry) -> tuple[bool, float | None]:
        """Return whether the entry is due, and the seconds until it is due again."""

    def reserve(self, entry: RedBeatSchedulerEntry) -> RedBeatSchedulerEntry:
        """Return the entry as it is after its run."""

    def broker_failed(self, error: BaseException) -> bool:
        """Return whether the broker is to blame; then its connection is dropped."""


@dataclass(frozen=True, slots=True)
class Promise:
    """A run that is published once it is recorded, and never again."""

    entry: RedBeatSchedulerEntry
    claim: Claim
    done: Completion

    def report(self, what: str) -> None:
        """Say what became of a run that was not published."""
        run = self.entry.run
        scheduled_at = run.verdict.scheduled_at if run and run.verdict else None
        if run and run.trigger:
            scheduled_at = run.trigger.at
        logger.error("beat: The run of %s at %s %s", self.entry.name, scheduled_at, what)


def name_of(hooks: Hooks, claim: Claim) -> str:
    """Return the name of a claimed entry that may not be readable."""
    return claim.key.removeprefix(ensure_conf(hooks.app).key_prefix)
