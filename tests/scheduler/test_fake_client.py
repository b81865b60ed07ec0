"""A fake server as the client of the app, as tests of users have it."""

from __future__ import annotations

import fakeredis
import pytest
from celery import Celery

from tests.deployments import PREFIX

from .conftest import World


@pytest.mark.parametrize("decode_responses", [True, False])
def test_a_fake_of_the_users_own_serves_a_beat(decode_responses: bool) -> None:
    """A fake knows neither INFO nor the digest function of the scripts."""
    app = Celery("fake", broker="memory://", set_as_current=False)
    app.conf.redbeat_key_prefix = PREFIX
    server = fakeredis.FakeServer()
    app.redbeat_redis = fakeredis.FakeRedis(server=server, decode_responses=decode_responses)
    world = World(app, fakeredis.FakeRedis(server=server, decode_responses=True))
    world.put("a")
    scheduler = world.scheduler()
    scheduler.tick()
    assert scheduler.names == ["a"]
    assert world.run_count("a") == 1
    scheduler.close()
