r"""Pictures of the page: light, for the documentation; dark, and on a phone, to be looked at.

They go to the directory in ``REDBEAT_SCREENSHOTS``, else to that of the test. Those of the
documentation are made again by::

    REDBEAT_SCREENSHOTS=docs/images .venv/bin/python -m pytest -n 0 \\
        tests/browser/test_screenshots.py -k light
"""

from __future__ import annotations

import os
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

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
LIGHT = {"viewport": {"width": 1200, "height": 800}, "color_scheme": "light"}
DARK = {"viewport": {"width": 1200, "height": 800}, "color_scheme": "dark"}
PHONE = {"viewport": {"width": 390, "height": 844}, "color_scheme": "light"}


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


def take(page: Page, front: str, directory: Path) -> list[Path]:
    """Take a picture of each page; the names begin with ``front``."""
    files = []
    for what, path in PATHS.items():
        page.goto(path)
        expect(page.get_by_role("heading").first).to_be_visible()
        files.append(directory / f"{front}-{what}.png")
        page.screenshot(path=files[-1], full_page=front != "web")
    return files


@pytest.mark.parametrize(
    ("front", "options"),
    [("web", LIGHT), ("dark", DARK), ("phone", PHONE)],
    ids=["light", "dark", "phone"],
)
def test_pictures(
    new_page: NewPage,
    project: Project,
    make: Make,
    redis_client: redis.Redis,
    directory: Path,
    front: str,
    options: dict[str, Any],
) -> None:
    fill(make, redis_client)
    project.worker()
    project.beat("--max-interval", "5")
    project.wait_for_runs("warehouse-sync", 12, deadline=60)
    wait_until(lambda: redis_client.hlen("redbeat::quarantine"), 30, "the quarantine")
    for file in take(new_page(**options), front, directory):
        assert file.read_bytes().startswith(b"\x89PNG")
        size = file.stat().st_size
        assert front != "web" or size < LARGEST, f"{file} is too large for the documentation"
