"""Entries from RedBeat 2 in a cluster are found at the start and copied."""

from __future__ import annotations

import pytest

from redbeat.errors import ConfigurationError
from redbeat.management.prefixes import copy_untagged
from redbeat.storage.checks import untagged_prefix
from tests.topologies.conftest import Site
from tests.topologies.test_conformance import definition

WARNING = "There are entries under the prefix 'redbeat:'"


@pytest.fixture
def old(cluster: Site) -> Site:
    """Store entries like RedBeat 2, in several slots."""
    client = cluster.client
    for number, name in enumerate(("a", "ö{b}", "static")):
        client.hset(f"redbeat:{name}", "definition", definition(name))
        client.hset(f"redbeat:{name}", "meta", '{"total_run_count": 7}')
        client.zadd("redbeat::schedule", {f"redbeat:{name}": 4e9 + number / 4})
    client.zadd("redbeat::schedule", {"redbeat:gone": 1})
    client.sadd("redbeat::statics", "static")
    return cluster


def warned(site: Site, caplog: pytest.LogCaptureFixture) -> int:
    """Return how many warnings a new beat logs in its first ticks."""
    caplog.clear()
    scheduler = site.scheduler()
    for _ in range(3):
        scheduler.tick()
    scheduler.close()
    return caplog.text.count(WARNING)


def test_copied_with_history_and_score(old: Site) -> None:
    result = copy_untagged(old.app())
    assert sorted(result.copied) == ["a", "static", "ö{b}"]
    assert (result.kept, result.unreadable) == ([], ["gone"])
    assert old.client.zrange("{redbeat}::schedule", 0, -1, withscores=True) == [
        ("{redbeat}:a", 4e9),
        ("{redbeat}:ö{b}", 4e9 + 0.25),
        ("{redbeat}:static", 4e9 + 0.5),
    ]
    assert old.client.hgetall("{redbeat}:ö{b}") == old.client.hgetall("redbeat:ö{b}")
    assert old.client.smembers("{redbeat}::statics") == {"static"}


def test_existing_entries_are_kept(old: Site) -> None:
    copy_untagged(old.app())
    old.client.hset("{redbeat}:a", "meta", "{}")
    result = copy_untagged(old.app())
    assert (len(result.copied), len(result.kept)) == (0, 3)
    assert old.client.hget("{redbeat}:a", "meta") == "{}"
    assert old.client.exists("redbeat:a", "redbeat::schedule") == 2


def test_a_beat_warns_once_until_they_are_copied(
    old: Site, caplog: pytest.LogCaptureFixture
) -> None:
    old.client.zrem("redbeat::schedule", "redbeat:gone")
    assert warned(old, caplog) == 1
    copy_untagged(old.app())
    assert warned(old, caplog) == 0


def test_without_old_entries_nothing_is_logged(
    cluster: Site, caplog: pytest.LogCaptureFixture
) -> None:
    assert warned(cluster, caplog) == 0


def test_entries_of_a_custom_prefix_are_copied(old: Site) -> None:
    app = old.app(redbeat_key_prefix="{mine}:")
    assert len(copy_untagged(app, "redbeat:").copied) == 3
    assert old.client.hget("{mine}:a", "definition") == definition("a")
    with pytest.raises(ConfigurationError, match="old prefix"):
        copy_untagged(app, "{mine}:")


def test_the_prefix_of_redbeat_2() -> None:
    assert untagged_prefix("{redbeat}:") == "redbeat:"
    assert untagged_prefix("a{b}c{d}:") == "abc{d}:"
