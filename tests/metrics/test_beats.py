"""Tests of the metrics that real beats serve, about the beat and about the schedule."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from redbeat.beat.lock import new_token
from tests.acceptance.processes import ROOT, Project
from tests.metrics.conftest import begin_beat
from tests.metrics.scrapes import Scrape, Target, own_names
from tests.servers import free_port
from tests.waiting import wait_until

TASK = "tests.acceptance.project.note"


def entries(project: Project, *names: str, **more: Any) -> None:
    """Store hourly entries that are due now."""
    for name in names:
        schedule = {"__type__": "interval", "every": 3600.0, "relative": False}
        text = json.dumps({"name": name, "task": TASK, "schedule": schedule, **more})
        project.client.hset(f"redbeat:{name}", "definition", text)
        project.client.zadd("redbeat::schedule", {f"redbeat:{name}": 0})


def one(scrape: Scrape, **expected: float) -> None:
    """Assert the values of samples without labels, by name without the prefix ``redbeat_``."""
    for name, value in expected.items():
        assert scrape.value(f"redbeat_{name}") == value, name


def test_sent_runs_are_counted(project: Project) -> None:
    names = [f"entry {number}" for number in range(20)]
    entries(project, *names)
    beat, target = begin_beat(project)
    target.wait_for(20, "redbeat_dispatched_total")
    # Wait until the tick has ended.
    scrape = target.wait_for(1, "redbeat_tick_duration_seconds_count")
    assert scrape.by_entry("dispatched") == dict.fromkeys(names, 1.0)
    assert project.client.llen("celery") == 20
    one(scrape, dispatched_total=20, failed_total=0, retried_total=0, missed_total=0)
    one(scrape, lateness_seconds_count=20, redis_up=1, leader=1, due_entries=0, static_entries=0)
    assert scrape.value("redbeat_lateness_seconds_bucket", le="+Inf") == 20
    assert scrape.value("redbeat_entries", state="scheduled") == 20
    assert (scrape.value("redbeat_tick_duration_seconds_sum") or 0) > 0
    assert 0 <= (scrape.value("redbeat_last_tick_age_seconds") or 0) < 30
    assert 0 <= (scrape.value("redbeat_lock_age_seconds") or 0) < 60
    assert 1400 < (scrape.value("redbeat_lock_ttl_seconds") or 0) <= 1500
    assert abs(scrape.value("redbeat_clock_offset_seconds") or 0) < 1
    assert scrape.value("process_resident_memory_bytes")
    assert beat.stop() == 0
    assert project.client.hget(".redbeat::stats", "dispatched") == "20"


@pytest.mark.long
def test_buckets_add_up(project: Project) -> None:
    entries(project, "a", "b")
    _, target = begin_beat(project)
    scrape = target.wait_for(2, "redbeat_dispatched_total")
    for name in ("redbeat_lateness_seconds", "redbeat_tick_duration_seconds"):
        buckets = [s for s in scrape.samples if s.name == f"{name}_bucket"]
        bounds = [float(sample.labels["le"]) for sample in buckets]
        assert bounds == sorted(bounds)
        assert [s.value for s in buckets] == sorted(s.value for s in buckets)
        assert buckets[-1].value == scrape.value(f"{name}_count")


@pytest.mark.long
def test_all_metrics_have_the_documented_names(project: Project) -> None:
    entries(project, "a")
    _, target = begin_beat(project)
    scrape = target.wait_for(1, "redbeat_dispatched_total")
    found = {name for name in scrape.names if name.startswith("redbeat_")}
    rare = {name for name in own_names() if name.startswith("redbeat_entry_")}
    rare |= {"redbeat_overdue_entry_seconds", "redbeat_problem"}
    assert own_names() - found == rare - {"redbeat_entry_dispatched_total"}
    assert found <= own_names()
    for family in scrape.families:
        if family.name.startswith("redbeat_"):
            assert family.documentation.endswith("."), family.name
            counter = any(sample.name.endswith("_total") for sample in family.samples)
            assert (family.type == "counter") is counter or not family.samples, family.name


@pytest.mark.long
def test_an_entry_that_cannot_be_read(project: Project) -> None:
    project.client.hset("redbeat:bad", "definition", "{")
    project.client.zadd("redbeat::schedule", {"redbeat:bad": 0})
    _, target = begin_beat(project)
    scrape = target.wait_for(1, "redbeat_quarantined_total")
    assert scrape.by_entry("quarantined") == {"bad": 1}
    wait_until(
        lambda: target.scrape().value("redbeat_entries", state="quarantined") == 1, 30, "a count"
    )


@pytest.mark.long
def test_leader_and_standby(project: Project) -> None:
    leader, first = begin_beat(project)
    assert first.wait("/readyz", 200) == "leader\n"
    entries(project, "a")
    _, second = begin_beat(project)
    assert second.wait("/readyz", 200) == "standby\n"
    first.wait_for(1, "redbeat_dispatched_total")
    scrape = second.scrape()
    one(scrape, leader=0, dispatched_total=0, redis_up=1)
    assert scrape.value("redbeat_entries", state="scheduled") == 1
    assert (scrape.value("redbeat_lock_ttl_seconds") or 0) > 0
    age = first.scrape().value("redbeat_lock_age_seconds")
    assert age is not None
    assert leader.stop() == 0
    wait_until(lambda: second.get("/readyz").text == "leader\n", 30, "the standby leads")
    scrape = second.scrape()
    one(scrape, leader=1)
    assert (scrape.value("redbeat_lock_age_seconds") or 0) < age + 60


@pytest.mark.long
def test_a_lock_of_redbeat_2(project: Project) -> None:
    project.client.set("redbeat::lock", "0123456789abcdef", px=60_000)
    _, target = begin_beat(project)
    assert target.wait("/readyz", 200) == "standby\n"
    scrape = target.scrape()
    one(scrape, leader=0, beats=2)
    assert scrape.value("redbeat_lock_age_seconds") is None
    assert 0 < (scrape.value("redbeat_lock_ttl_seconds") or 0) <= 60


@pytest.mark.long
def test_a_key_that_is_not_a_lock(project: Project) -> None:
    project.client.hset("redbeat::lock", "a", "b")
    _, target = begin_beat(project)
    target.wait("/healthz", 200)
    wait_until(lambda: "not a lock" in target.get("/readyz").text, 30, "the reason")
    assert target.get("/readyz").code == 503


@pytest.mark.long
def test_a_port_that_is_in_use(project: Project) -> None:
    _, target = begin_beat(project)
    target.wait("/healthz", 200)
    second = project.beat(settings={"redbeat_metrics_port": target.port})
    assert second.popen.wait(60) != 0
    output = second.output()
    assert f"cannot listen on 127.0.0.1, port {target.port}" in output
    assert "Set redbeat_metrics_port to a free port" in output
    assert "Sending due task" not in output
    assert target.get("/healthz").code == 200


@pytest.mark.long
def test_an_address_that_is_not_of_this_host(project: Project) -> None:
    beat, _ = begin_beat(project, settings={"redbeat_metrics_host": "192.0.2.1"})
    assert beat.popen.wait(60) != 0
    assert "cannot listen on 192.0.2.1, port" in beat.output()


@pytest.mark.long
def test_the_beat_in_a_worker(project: Project) -> None:
    entries(project, "a")
    target = Target(free_port())
    worker = project.worker(
        "--beat", "--scheduler", "redbeat", settings={"redbeat_metrics_port": target.port}
    )
    scrape = target.wait_for(1, "redbeat_dispatched_total")
    assert scrape.by_entry("dispatched") == {"a": 1}
    assert target.get("/readyz") == (200, "leader\n")
    assert worker.stop() == 0
    wait_until(lambda: target.get("/healthz").code == 0, 30, "the end of the server")


@pytest.mark.long
def test_without_a_port_nothing_listens(project: Project) -> None:
    beat = project.beat()
    beat.wait_for("beat: Acquired lock")
    wait_until(lambda: project.client.hexists(".redbeat::stats", "last_tick"), 30, "a tick")
    assert "Metrics are at" not in beat.output()


BLOCKED = """
import sys
sys.modules["prometheus_client"] = None
from celery import Celery
app = Celery("a", broker="memory://")
app.conf.redbeat_redis_url = sys.argv[1]
from redbeat.schedulers import RedBeatScheduler
scheduler = RedBeatScheduler(app)
scheduler.tick()
scheduler.close()
import redbeat.cli.web
app.conf.redbeat_metrics_port = 9540
del app.redbeat_conf
RedBeatScheduler(app).tick()
"""


@pytest.mark.long
def test_without_the_prometheus_package(redis_url: str) -> None:
    """The missing package raises an error only if a port is set."""
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED, redis_url],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    last = done.stderr.splitlines()[-1]
    assert last.startswith("redbeat.errors.ConfigurationError: redbeat_metrics_port needs"), done
    assert "pip install 'celery-redbeat[metrics]'" in last


@pytest.mark.long
def test_a_token_that_is_not_the_leaders(project: Project) -> None:
    """The lock's age is unknown if another process sets the lock key directly."""
    _, target = begin_beat(project)
    target.wait("/readyz", 200)
    project.client.set("redbeat::lock", new_token(), px=60_000)
    wait_until(lambda: target.get("/readyz").text == "standby\n", 30, "a standby")
    assert target.scrape().value("redbeat_lock_age_seconds") is None
