"""What people type into the search of the manual leads somewhere."""

from __future__ import annotations

import pytest

from tests.docs.blocks import PAGES
from tests.docs.test_length import prose

#: Each is in the prose of a page; whether the answer is honest, only a reader can tell.
TERMS = (
    *("elasticache", "memorystore", "azure", "upstash"),
    *("windows", "supervisor", "gevent", "docker", "kubernetes"),
    *("cron expression", "last day of the month", "time zone", "daylight saving"),
    *("priority", "rate limit", "retry", "overlap", "jitter", "misfire"),
    *("duplicate", "logging to a file", "high availability", "memory", "backup"),
    *("who changed", "uninstall", "upgrade"),
)
LINES = [line for page in PAGES for line in prose(page.read_text(encoding="utf-8"))]
TEXT = " ".join(" ".join(LINES).lower().split())


@pytest.mark.parametrize("term", TERMS)
def test_a_search_finds(term: str) -> None:
    assert term in TEXT
