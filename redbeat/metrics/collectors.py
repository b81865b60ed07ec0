"""What is asked at each scrape: of a beat, or of Redis alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from celery.utils.log import get_logger
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from redis.exceptions import RedisError

from redbeat.metrics.counters import Counters
from redbeat.metrics.families import counted, histograms, process, schedule
from redbeat.metrics.pulse import Health, Pulse
from redbeat.metrics.snapshot import Snapshot

__all__ = ("BeatCollector", "RedisCollector")

logger = get_logger("celery.beat")


class BeatCollector(Collector):
    """One beat: what it counted itself, and what ``look`` says of the schedule, if anything.

    A Redis that did not answer the last tick is not asked.
    """

    def __init__(
        self, pulse: Pulse, counters: Counters, look: Callable[[], Snapshot | None]
    ) -> None:
        self._pulse = pulse
        self._counters = counters
        self._look = look

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics. Three round trips, none while Redis is away."""
        pulse = self._pulse
        found = _seen(self._look) if pulse.redis_up else None
        yield from process(pulse.leads, pulse.tick_age, pulse.redis_up)
        totals = self._counters.totals()
        yield from counted(totals)
        yield from histograms(totals)
        if found is not None:
            yield from schedule(found)


class RedisCollector(Collector):
    """A schedule, as ``look`` says: whatever beats there are have told Redis.

    Entries are shown one by one while there are no more than ``most``.
    """

    def __init__(self, look: Callable[[], Snapshot], most: int) -> None:
        self._look = look
        self._most = most

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics. Three round trips."""
        found = _seen(self._look)
        if found is None:
            yield from process(None, None, False)
            return
        yield from process(found.leads, found.tick_age, True)
        totals = found.totals(self._most)
        yield from counted(totals)
        yield from histograms(totals)
        yield from schedule(found)

    def ready(self) -> Health:
        """Tell whether Redis answers. Three round trips."""
        up = _seen(self._look) is not None
        return Health(up, "Redis answers" if up else "Redis does not answer")


def _seen(look: Callable[[], Snapshot | None]) -> Snapshot | None:
    try:
        return look()
    except (RedisError, OSError) as error:
        logger.debug("metrics: Redis does not answer: %r", error)
        return None
