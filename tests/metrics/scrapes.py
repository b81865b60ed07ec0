"""HTTP requests to a beat or an exporter, like those of Prometheus and the kubelet."""

from __future__ import annotations

import urllib.error
import urllib.request
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from redbeat.entries.status import Overdue
from redbeat.metrics.counters import KINDS, entry_field
from redbeat.metrics.counts import Counts
from redbeat.metrics.problems import finding
from redbeat.metrics.prometheus import counters_of, health_gauges, schedule_gauges
from redbeat.metrics.snapshot import Snapshot
from tests.waiting import wait_until

__all__ = ("Response", "Scrape", "Target", "own_names")


class Response(NamedTuple):
    """The response to a GET request."""

    code: int
    text: str


class Scrape:
    """The samples of one scrape."""

    def __init__(self, text: str) -> None:
        self.families = list(text_string_to_metric_families(text))
        self.samples = [sample for family in self.families for sample in family.samples]

    def value(self, name: str, **labels: str) -> float | None:
        """Return the value of a sample, or None if the sample does not exist."""
        found = [s.value for s in self.samples if s.name == name and s.labels == labels]
        assert len(found) < 2, f"{name} is there twice"
        return float(found[0]) if found else None

    def by_entry(self, kind: str) -> dict[str, float]:
        """Return the values of a counter by entry."""
        name = f"redbeat_entry_{kind}_total"
        return {s.labels["entry"]: s.value for s in self.samples if s.name == name}

    @property
    def names(self) -> set[str]:
        """The names of all samples."""
        return {sample.name for sample in self.samples}


class Target:
    """The HTTP port of a beat or an exporter on this machine."""

    def __init__(self, port: int) -> None:
        self.port = port

    def get(self, path: str) -> Response:
        """Return the response; the code is 0 if no process listens."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=30) as reply:
                return Response(reply.status, reply.read().decode())
        except urllib.error.HTTPError as error:
            with error:
                return Response(error.code, error.read().decode())
        except OSError as error:
            return Response(0, repr(error))

    def scrape(self) -> Scrape:
        """Return the current metrics."""
        code, text = self.get("/metrics")
        assert code == 200, text
        return Scrape(text)

    def wait(self, path: str, code: int, deadline: float = 60.0) -> str:
        """Wait until a path responds with this status code; return the body."""
        wait_until(lambda: self.get(path).code == code, deadline, f"{code} at {path}")
        return self.get(path).text

    def wait_for(self, least: float, name: str, deadline: float = 60.0) -> Scrape:
        """Wait until a sample without labels has at least this value; return the scrape."""
        self.wait("/healthz", 200, deadline)
        wait_until(
            lambda: (self.scrape().value(name) or 0) >= least, deadline, f"{name} of {least}"
        )
        return self.scrape()


def own_names() -> set[str]:
    """Return the names of all metrics of RedBeat, without the metrics of the process."""
    counts = Counts(1.0, 1, 0, 0, 0, 0, 1, 0.5, "token", [], leads_since=0.5)
    overdue, problems = [Overdue("a", None, 2.0, 1.0)], [finding("late", "an entry is late")]
    found = Snapshot(counts, {}, 0.0, 1.0, False, overdue, problems)
    totals = {entry_field(kind, "a"): 1 for kind in KINDS}
    families = (
        *health_gauges(True, 1.0, True),
        *counters_of(totals),
        *schedule_gauges(found),
    )
    return {sample.name for family in families for sample in family.samples}
