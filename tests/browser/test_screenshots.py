"""Pictures of the page, in both colour schemes and on a phone.

Where they go is told by ``REDBEAT_SCREENSHOTS``, else to the directory of the test. Those of the
documentation are made by::

    REDBEAT_SCREENSHOTS=docs/images python -m pytest -n 0 tests/browser/test_screenshots.py
"""

from __future__ import annotations

import os
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
import redis
from celery.schedules import crontab
from playwright.sync_api import Page, expect

from redbeat import clocked
from tests.acceptance.processes import Project
from tests.browser.conftest import Make, NewPage
from tests.waiting import wait_until

#: Bytes of a picture, at most.
LARGEST = 200_000
PATHS = {
    "schedule": "/",
    "timeline": "/timeline?span=hour",
    "entry": "/entry?name=warehouse-sync",
    "beats": "/beats",
}
RULES = {
    "sessions-clean-up": 300.0,
    "currency-rates": 900.0,
    "newsletter": crontab("30", "8", "mon-fri"),
    "invoices": crontab("0", "6", day_of_month="1"),
    "backup": crontab("15", "2"),
    "price-feed": crontab("*/10", "8-17", "mon-fri"),
    "search-index": crontab("*/15"),
    "health-probe": 60.0,
    "stock-report": crontab("0", "9,17"),
    "archive-logs": crontab("0", "3", "sun"),
}
KINDS = {
    "light": {"viewport": {"width": 1200, "height": 800}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1200, "height": 800}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light"},
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Where the pictures go."""
    directory = Path(os.environ.get("REDBEAT_SCREENSHOTS") or tmp_path / "pictures").resolve()
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def fill(make: Make, client: redis.Redis) -> None:
    """Save what a small shop might have."""
    for name, when in RULES.items():
        make(name, when)
    make("warehouse-sync", 2.0, args=["north"], kwargs={"full": False})
    tomorrow = datetime.now(timezone.utc).replace(microsecond=0) + timedelta(days=1)
    make("go-live", clocked(tomorrow))
    make("import-orders", 600.0).pause("The supplier's API is down until Monday")
    client.hset("redbeat:loyalty-points", "definition", '{"name": "loyalty-points", "task": ')
    client.zadd("redbeat::schedule", {"redbeat:loyalty-points": 0})


def take(page: Page, name: str, directory: Path) -> None:
    """Take a picture of each page; the name is in front of what is not for the documentation."""
    for what, path in PATHS.items():
        page.goto(path)
        expect(page.get_by_role("heading").first).to_be_visible()
        front = "web" if name == "light" else f"{name}-web"
        file = directory / f"{front}-{what}.png"
        page.screenshot(path=file, full_page=name == "phone")
        assert file.read_bytes().startswith(b"\x89PNG")
        assert file.stat().st_size < LARGEST, f"{file} is too large for the documentation"


def test_pictures(
    new_page: NewPage,
    project: Project,
    make: Make,
    redis_client: redis.Redis,
    directory: Path,
) -> None:
    fill(make, redis_client)
    project.worker()
    project.beat("--max-interval", "5")
    project.wait_for_runs("warehouse-sync", 12, deadline=60)
    wait_until(lambda: redis_client.hlen("redbeat::quarantine"), 30, "the quarantine")
    for name, options in KINDS.items():
        take(new_page(**options), name, directory)
