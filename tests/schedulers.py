"""A scheduler whose parts tests can reach."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from redbeat.schedulers import RedBeatScheduler
from redbeat.storage.store import Store


class Scheduler(RedBeatScheduler):
    """Gives tests its beat and its store, which may be of another class."""

    make_store: type[Store] = Store

    @cached_property
    def stores(self) -> list[Store]:
        """The store of each part of the schedule."""
        return [self.make_store(one.client, one.keys) for one in super().stores]

    @property
    def store(self) -> Any:
        """The store of the beat, or of its first part."""
        return self.stores[0]

    @property
    def beat(self) -> Any:
        """The beat of this scheduler."""
        return self._beat
