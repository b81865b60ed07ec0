"""`redbeat_wait_replicas`: what was recorded is on so many replicas before the beat goes on."""

from __future__ import annotations

from typing import Any

import pytest

from redbeat.config import RedBeatConfig
from redbeat.connection.cluster import node_of
from redbeat.errors import ConfigurationError
from tests.scheduler.conftest import RecordingScheduler
from tests.topologies.conftest import Site
from tests.topologies.test_conformance import put
from tests.waiting import wait_until


def waits(site: Site) -> int:
    """Return how often the server was told to wait."""
    store = site.store()
    stats: dict[str, Any] = node_of(store.client, store.keys.schedule).info("commandstats")
    return int(stats.get("cmdstat_wait", {}).get("calls", 0))


def run(site: Site, scheduler: RecordingScheduler, name: str) -> None:
    """Run one entry, and have that recorded."""
    put(site.store(), name)
    count = len(scheduler.sent)
    wait_until(lambda: scheduler.tick() is not None and len(scheduler.sent) > count)
    scheduler._ticker.flush()  # noqa: SLF001 - which a tick does when it pleases


@pytest.mark.long
def test_replicas_are_waited_for(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """The group of Sentinel has a replica, the others have none: that is said once."""
    scheduler = site.scheduler(redbeat_wait_replicas=1)
    scheduler.tick()
    before = waits(site)
    for name in ("a", "b", "c"):
        run(site, scheduler, name)
    assert waits(site) >= before + 3
    assert caplog.text.count("Only 0 of 1 replicas") == (0 if site.kind == "sentinel" else 1)
    assert scheduler.names == ["a", "b", "c"]


def test_nobody_waits_unless_told_to(site: Site) -> None:
    scheduler = site.scheduler()
    before = waits(site)
    run(site, scheduler, "a")
    assert waits(site) == before


@pytest.mark.parametrize("value", [-1, 1.5, True, "1"])
def test_impossible_values(site: Site, value: object) -> None:
    with pytest.raises(ConfigurationError, match="redbeat_wait_replicas"):
        RedBeatConfig(site.app(redbeat_wait_replicas=value))
