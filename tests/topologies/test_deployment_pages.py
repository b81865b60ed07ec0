"""Runs the configurations in the manual, with other host names."""

from __future__ import annotations

from typing import Any

from redbeat import RedBeatSchedulerEntry
from tests.pages import configurations
from tests.topologies.conftest import Site, open_site
from tests.topologies.groups import ClusterGroup, SentinelGroup
from tests.waiting import wait_until


def run(site: Site, settings: dict[str, Any]) -> None:
    """Save an entry and wait until a beat has run it."""
    nothing = {"redbeat_redis_url": None, "redbeat_redis_options": None}
    if "redbeat_redis_url" in settings:
        settings = {**settings, "broker_url": "memory://"}
    app = site.app(**{**nothing, **settings})
    RedBeatSchedulerEntry("a", "t", 0.1, app=app).save()
    scheduler = site.scheduler(**{**nothing, **settings})
    wait_until(lambda: scheduler.tick() is not None and scheduler.sent)
    scheduler.close()


def test_the_sentinel_page(request: Any, sentinel_group: SentinelGroup) -> None:
    replace = {"of-the-servers": "master-secret", "of-the-sentinels": "sentinel-secret"}
    replace['"main"'] = '"mine"'
    for number, (host, port) in enumerate(sentinel_group.addresses, 1):
        replace[f'"sentinel-{number}.example.com", 26379'] = f'"{host}", {port}'
        replace[f"sentinel-{number}.example.com:26379"] = f"{host}:{port}"
    found = configurations("sentinel.rst", replace)
    assert len(found) == 2
    for site in open_site(request, "sentinel"):
        for settings in found:
            run(site, settings)


def test_the_cluster_page(request: Any, cluster_group: ClusterGroup) -> None:
    replace = {
        f'"redis-{number}.example.com", 6379': f'"{host}", {port}'
        for number, (host, port) in enumerate(cluster_group.addresses, 1)
    }
    found = configurations("cluster.rst", replace)
    assert len(found) == 1
    for site in open_site(request, "cluster"):
        for settings in found:
            run(site, settings)
