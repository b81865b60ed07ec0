"""A real beat whose broker is dead: everything that reports the health of the schedule says so."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from celery import Celery

from redbeat import RedBeatSchedulerEntry, Schedule
from redbeat.cli.command import Exit
from redbeat.web.auth import Access
from redbeat.web.site import create_app
from tests.acceptance.processes import Process, Project
from tests.cli.commands import CommandResult, run_command
from tests.metrics.scrapes import Target
from tests.servers import RedisServer, free_port
from tests.waiting import wait_until

#: The entry is late by more than this number of seconds in each test.
LATE = 3.0


class Outage:
    """A beat that cannot reach its broker, and the app of the same project in this process."""

    def __init__(self, directory: Path, server: RedisServer, broker: RedisServer) -> None:
        self.broker = broker
        self.host = f"127.0.0.1:{broker.port}"
        self.target = Target(free_port())
        settings = {
            "broker_url": broker.url,
            "redbeat_redis_url": server.url,
            "redbeat_metrics_port": self.target.port,
        }
        self.app = Celery("project", set_as_current=False)
        self.app.conf.update(broker_url=broker.url, redbeat_redis_url=server.url)
        for name in ("tick", "tock"):
            RedBeatSchedulerEntry(name, "t", timedelta(seconds=1), app=self.app).save()
        broker.kill()
        self.project = Project(directory, server.url)
        self.beat: Process = self.project.beat(settings=settings)

    def run(self, *command: str) -> CommandResult:
        """Run ``celery redbeat <command>`` in this process."""
        return run_command(self.app, *command)

    def end(self) -> None:
        """Stop the processes."""
        self.project.end()
        self.app.close()


@pytest.fixture(scope="module")
def outage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outage]:
    """A beat with two entries that have been due for more than :data:`LATE` seconds."""
    with RedisServer() as server, RedisServer() as broker:
        outage = Outage(tmp_path_factory.mktemp("outage"), server, broker)
        try:
            outage.target.wait_for(LATE, "redbeat_most_late_seconds")
            yield outage
        finally:
            outage.end()


def test_status_fails_and_names_the_broker(outage: Outage) -> None:
    ran = outage.run("status", "--max-late", "2")
    assert ran.code == Exit.UNHEALTHY
    problems = [line for line in ran.lines if line.startswith("PROBLEM")]
    assert any("broker" in line and outage.host in line for line in problems), ran.out
    assert any("late" in line for line in problems), ran.out
    assert any("refused" in line for line in problems), ran.out
    (found,) = outage.run("status", "--json").json
    assert not found["healthy"]
    assert found["due_now"] == 2
    assert found["most_late"] > LATE
    assert found["entries"]["failing"] >= 1
    assert "redis" in found["redis"]["url"]


def test_the_probes_tell_liveness_from_readiness(outage: Outage) -> None:
    assert outage.target.get("/healthz").code == 200, "a restart would not bring the broker back"
    code, text = outage.target.get("/readyz")
    assert code == 503
    assert outage.host in text
    assert "refused" in text


def test_the_metrics_show_it(outage: Outage) -> None:
    scrape = outage.target.scrape()
    assert scrape.value("redbeat_broker_up") == 0
    assert scrape.value("redbeat_due_entries") == 2
    assert (scrape.value("redbeat_most_late_seconds") or 0) > LATE
    assert (scrape.value("redbeat_entries", state="failing") or 0) >= 1


def test_doctor_finds_the_broker_and_the_entries(outage: Outage) -> None:
    ran = outage.run("doctor", "--json")
    assert ran.code == Exit.UNHEALTHY
    findings = {finding["kind"]: finding for finding in ran.json}
    assert outage.host in findings["broker"]["problem"]
    assert findings["failing"]["key"] in ("redbeat:tick", "redbeat:tock")
    assert "refused" in findings["failing"]["problem"]
    assert not {"score", "delivery"} & findings.keys()


def test_list_show_and_history_have_the_failing_entry(outage: Outage) -> None:
    names = [record["name"] for record in outage.run("list", "--state", "failing", "--json").json]
    assert names
    (entry,) = outage.run("show", names[0], "--json").json
    assert entry["state"] == "failing"
    failing = entry["failing"]
    assert failing["attempts"] >= 1
    assert "refused" in failing["first_error"]
    assert "refused" in failing["last_error"]
    assert failing["first_at"] <= failing["last_at"] < failing["next_attempt_at"]
    text = outage.run("show", names[0]).out
    assert "attempt" in text
    assert "refused" in text
    history = outage.run("history", names[0], "--json").json
    assert history[-1]["outcome"].startswith("failed:OperationalError")


def test_the_page_shows_it(outage: Outage) -> None:
    page = create_app(Schedule(outage.app), Access()).test_client()
    listing = page.get("/?state=failing").text
    assert "badge failing" in listing
    assert outage.host in listing
    assert outage.host in page.get("/beats").text
    text = page.get("/entry?name=tick").text + page.get("/entry?name=tock").text
    assert "refused" in text


def test_the_log_says_host_reason_and_what_happens_next(outage: Outage) -> None:
    lines = [line for line in outage.beat.output().splitlines() if "ERROR" in line]
    assert len(lines) == 1, "repeated at growing intervals only"
    assert outage.host in lines[0]
    assert "refused" in lines[0]
    assert "trying again" in lines[0]


def test_when_the_broker_is_back_all_is_well(outage: Outage) -> None:
    """This test is the last one of the file, because it ends the outage."""
    outage.broker.restart()
    outage.target.wait("/readyz", 200)
    outage.target.wait_for(2, "redbeat_dispatched_total")
    wait_until(
        lambda: not outage.run("list", "--state", "failing", "--json").lines, 20, "no failing"
    )
    assert outage.run("status", "--max-late", "30").code == 0
    scrape = outage.target.scrape()
    assert scrape.value("redbeat_broker_up") == 1
    assert scrape.value("redbeat_entries", state="failing") == 0
    (line,) = [one for one in outage.beat.output().splitlines() if "broker is back" in one]
    assert outage.host in line
    assert " s" in line
    assert outage.beat.stop() == 0
