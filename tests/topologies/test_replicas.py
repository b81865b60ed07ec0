"""`redbeat_wait_replicas`: a beat waits until the replicas have its records."""

from __future__ import annotations

from typing import Any

import pytest

from redbeat.config import RedBeatConfig
from redbeat.connection.topology import node_of
from redbeat.errors import ConfigurationError
from tests.scheduler.conftest import RecordingScheduler
from tests.topologies.conftest import Site
from tests.topologies.test_conformance import put
from tests.waiting import wait_until


def waits(site: Site) -> int:
    """Return how many WAIT commands the server received."""
    store = site.store()
    stats: dict[str, Any] = node_of(store.client, store.keys.schedule).info("commandstats")
    return int(stats.get("cmdstat_wait", {}).get("calls", 0))


def run(site: Site, scheduler: RecordingScheduler, name: str) -> None:
    """Let a beat run one entry and record the run."""
    put(site.store(), name)
    key = site.prefix + name
    wait_until(lambda: scheduler.tick() is not None and site.client.hexists(key, "history"))


@pytest.mark.long
def test_replicas_are_waited_for(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """There is one replica behind Sentinel. The other kinds have none, which is logged once."""
    scheduler = site.scheduler(redbeat_wait_replicas=1)
    scheduler.tick()
    before = waits(site)
    for name in ("a", "b", "c"):
        run(site, scheduler, name)
    assert waits(site) >= before + 3
    assert caplog.text.count("Only 0 of 1 replicas") == (0 if site.kind == "sentinel" else 1)
    assert scheduler.names == ["a", "b", "c"]


def test_by_default_the_beat_does_not_wait(site: Site) -> None:
    scheduler = site.scheduler()
    before = waits(site)
    run(site, scheduler, "a")
    assert waits(site) == before


@pytest.mark.parametrize("value", [-1, 1.5, True, "1"])
def test_impossible_values_are_refused(site: Site, value: object) -> None:
    with pytest.raises(ConfigurationError, match="redbeat_wait_replicas"):
        RedBeatConfig(site.app(redbeat_wait_replicas=value))
