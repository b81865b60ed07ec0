"""RedBeat works with fakeredis, which projects use in their tests."""

from __future__ import annotations

from unittest import mock

import fakeredis
import pytest
from celery import Celery

from redbeat import RedBeatSchedulerEntry, Schedule
from redbeat.decoder import RedBeatJSONEncoder
from tests.cli.commands import run_command
from tests.deployments import PREFIX

from .conftest import RecordingScheduler, World


@pytest.mark.parametrize("decode_responses", [True, False])
def test_a_beat_works_on_a_fake_client_of_the_user(decode_responses: bool) -> None:
    """fakeredis has neither ``INFO`` nor ``redis.sha1hex`` in scripts: no change conflicts."""
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


def test_a_replaced_get_redis_provides_the_client_of_all_parts(closed_port: int) -> None:
    app = Celery("fake", broker="memory://", set_as_current=False)
    app.conf.redbeat_redis_url = f"redis://127.0.0.1:{closed_port}"
    fake = fakeredis.FakeRedis(decode_responses=True)
    with mock.patch("redbeat.schedulers.get_redis", return_value=fake) as get_redis:
        entry = RedBeatSchedulerEntry("a", "t", 60.0, app=app)
        entry.last_run_at = None
        entry.save()
        assert fake.hexists("redbeat:a", "definition")
        assert list(Schedule(app)) == ["a"]
        scheduler = RecordingScheduler(app)
        scheduler.tick()
        scheduler.close()
        assert run_command(app, "history", "a").code == 0
    assert scheduler.names == ["a"]
    assert {call.args for call in get_redis.call_args_list} == {(app,)}


def test_a_replaced_codec_is_used_everywhere() -> None:
    app = Celery("fake", broker="memory://", set_as_current=False)
    app.redbeat_redis = fakeredis.FakeRedis(decode_responses=True)

    class Loud(RedBeatJSONEncoder):
        def default(self, obj: object) -> object:
            return "loud" if isinstance(obj, complex) else super().default(obj)

    with mock.patch("redbeat.schedulers.RedBeatJSONEncoder", Loud):
        RedBeatSchedulerEntry("a", "t", 60.0, kwargs={"x": 1j}, app=app).save()
    assert Schedule(app)["a"].kwargs == {"x": "loud"}
