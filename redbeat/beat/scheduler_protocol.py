"""What a beat asks of the scheduler, which users subclass."""

from __future__ import annotations

from typing import Any, Protocol

from redbeat.config import ensure_conf
from redbeat.entry import RedBeatSchedulerEntry
from redbeat.storage.records import Claim

__all__ = (
    "SchedulerProtocol",
    "name_of",
)


class SchedulerProtocol(Protocol):
    """What a beat asks of the scheduler, which users subclass."""

    app: Any
    Entry: type[RedBeatSchedulerEntry]
    max_interval: float

    @property
    def overrides_sending(self) -> bool:
        """Whether code of the user's own is on the way of a message, which may send past ours."""

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


def name_of(scheduler: SchedulerProtocol, claim: Claim) -> str:
    """Return the name of a claimed entry that may not be readable."""
    return claim.key.removeprefix(ensure_conf(scheduler.app).key_prefix)
