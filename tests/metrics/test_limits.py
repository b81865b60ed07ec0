"""Hostile clients of the metrics port: scrapes still work, and the beat is not affected."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator

import pytest

from redbeat.metrics.prometheus import MAX_LABEL, Handler, counters_of
from tests.acceptance.processes import Process, Project
from tests.metrics.conftest import begin_beat
from tests.metrics.scrapes import Target
from tests.metrics.test_beats import entries


@contextlib.contextmanager
def connections(target: Target, count: int) -> Iterator[list[socket.socket]]:
    """Open connections that send nothing."""
    with contextlib.ExitStack() as stack:
        address = ("127.0.0.1", target.port)
        yield [
            stack.enter_context(socket.create_connection(address, timeout=60)) for _ in range(count)
        ]


def still_works(project: Project, beat: Process, target: Target) -> None:
    """Assert that a scrape is answered, that the beat sends runs, and that no error was logged."""
    entries(project, "later")
    project.client.publish("redbeat::wakeup", "due")
    target.wait_for(2, "redbeat_dispatched_total")
    assert target.get("/healthz").code == target.get("/readyz").code == 200
    assert beat.stop() == 0
    assert "Traceback" not in beat.output()
    assert "ERROR" not in beat.output()


def test_silent_connections_and_huge_headers(project: Project) -> None:
    entries(project, "a")
    beat, target = begin_beat(project)
    target.wait_for(1, "redbeat_dispatched_total")
    with connections(target, 200) as opened:
        opened[0].sendall(b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 70_000)
        assert opened[0].recv(100).startswith(b"HTTP/1.0 431 ")
        opened[1].sendall(b"POST /metrics HTTP/1.1\r\nContent-Length: 1000000000\r\n\r\n")
        assert opened[1].recv(100).startswith(b"HTTP/1.0 ")
        opened[2].sendall(b"\x00\xff\r\n\r\n")
        assert b"400" in opened[2].recv(1000)
        for client in opened[3:100]:
            client.close()
        still_works(project, beat, target)


@pytest.mark.long
def test_silent_connections_are_closed(project: Project) -> None:
    entries(project, "a")
    beat, target = begin_beat(project)
    target.wait_for(1, "redbeat_dispatched_total")
    with connections(target, 100) as opened:
        started = time.monotonic()
        assert [client.recv(1) for client in opened] == [b""] * len(opened)
        assert Handler.timeout - 1 < time.monotonic() - started < Handler.timeout + 20
        still_works(project, beat, target)


def test_labels_are_printable_short_and_unique() -> None:
    """Prometheus refuses a whole scrape if two samples have the same labels."""
    names = ("a\n\x1b[31m", "a\\n\\x1b[31m", "\udcff", "\\xff", "x" * 5000 + "1", "x" * 5000 + "2")
    families = {family.name: family for family in counters_of({f"missed {n}": 1 for n in names})}
    samples = families["redbeat_entry_missed"].samples
    labels = [sample.labels["entry"] for sample in samples]
    assert len(set(labels)) == len(labels) == 3
    assert all(label.isprintable() and len(label) <= MAX_LABEL for label in labels)
    assert sum(sample.value for sample in samples) == len(names)
