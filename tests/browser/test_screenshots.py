r"""Screenshots of the dashboard: light and dark ones for the manual, narrow ones for inspection.

They are written to the directory in ``REDBEAT_SCREENSHOTS``, or to that of the test. To update the
manual's::

    REDBEAT_SCREENSHOTS=docs/images .venv/bin/python -m pytest -n 0 \\
        tests/browser/test_screenshots.py -k "not phone"
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

from redbeat import RedBeatSchedulerEntry, clocked
from redbeat.management.schedule import Schedule
from tests.acceptance.processes import Project
from tests.browser.conftest import NewPage
from tests.conftest import Make
from tests.waiting import wait_until

#: Maximum size of a screenshot in bytes.
LARGEST = 200_000
#: Number of runs in the history on the screenshots.
RUNS = 10
PATHS = {
    "schedule": "/",
    "entry": "/entry?name=warehouse-sync",
    "beats": "/beats",
    "form": "/entry/edit?name=price-feed",
    "timeline": "/timeline?span=hour",
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
    "queue-watch": 60.0,
    "cart-reminders": crontab("*/10"),
    "report-cache": crontab("*/30"),
    "stock-report": crontab("0", "9,17"),
    "archive-logs": crontab("0", "3", "sun"),
}
#: Height of each screenshot in the documentation, in pixels from the top of the page.
HEIGHTS = {"schedule": 800, "timeline": 1190, "entry": 1120, "beats": 850, "form": 1310}
LIGHT = {"viewport": {"width": 1200, "height": 800}, "color_scheme": "light"}
DARK = {"viewport": {"width": 1200, "height": 800}, "color_scheme": "dark"}
PHONE = {"viewport": {"width": 390, "height": 844}, "color_scheme": "light"}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return the directory for the screenshots."""
    directory = Path(os.environ.get("REDBEAT_SCREENSHOTS") or tmp_path / "pictures").resolve()
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def last_before(entry: RedBeatSchedulerEntry, now: datetime) -> datetime:
    """Return the time at which an entry must have run last."""
    for days in (1, 7, 31):
        entry.last_run_at = now - timedelta(days=days)
        runs = [at for at in entry.upcoming(400, entry.last_run_at) if at <= now]
        if runs:
            return runs[-1]
    raise AssertionError(f"{entry.name} runs too seldom for a picture")


def fill(make: Make) -> None:
    """Save the entries of a small shop, most of them with past runs."""
    now = datetime.now(timezone.utc).replace(microsecond=0)
    for number, (name, when) in enumerate(RULES.items()):
        task = f"shop.tasks.{name.replace('-', '_')}"
        entry = make(name, when, task=task, last_run_at=now - timedelta(seconds=7 * (number + 1)))
        entry.total_run_count = 97 * (17 - number)
        if isinstance(when, crontab):
            entry.last_run_at = last_before(entry, now)
        entry.save()
    sync = {"task": "shop.tasks.sync_warehouse", "args": ["north"], "kwargs": {"full": False}}
    make("warehouse-sync", 2.0, **sync)
    make("go-live", clocked(now + timedelta(days=1)), task="shop.tasks.go_live")
    held = make("import-orders", 600.0, task="shop.tasks.import_orders")
    held.pause("The supplier's API is down until Monday")


def spoil(client: redis.Redis) -> None:
    """Write an entry that ends in quarantine."""
    client.hset("redbeat:loyalty-points", "definition", '{"name": "loyalty-points", "task": ')
    client.zadd("redbeat::schedule", {"redbeat:loyalty-points": 0})


def take(
    page: Page, schedule: Schedule, name: str, directory: Path, client: redis.Redis
) -> list[Path]:
    """Take a screenshot of each page, and fill the page into the name of its file."""
    files = []
    for what, path in PATHS.items():
        if what == "beats":
            spoil(client)
            wait_until(lambda: client.hlen(".redbeat::quarantine"), 30, "the quarantine")
        if what == "timeline":
            # This entry runs so often that it would fill the whole timeline.
            schedule["warehouse-sync"].pause()
        if name.startswith("web-"):
            page.set_viewport_size({"width": 1200, "height": HEIGHTS[what]})
        page.goto(path)
        expect(page.get_by_role("heading").first).to_be_visible()
        files.append(directory / name.format(what))
        page.screenshot(path=files[-1], full_page=not name.startswith("web-"))
    return files


@pytest.mark.parametrize(
    ("name", "options"),
    [("web-{}.png", LIGHT), ("web-{}-dark.png", DARK), ("phone-{}.png", PHONE)],
    ids=["light", "dark", "phone"],
)
def test_the_pages_are_pictured(
    new_page: NewPage,
    project: Project,
    make: Make,
    redis_client: redis.Redis,
    schedule: Schedule,
    directory: Path,
    name: str,
    options: dict[str, Any],
) -> None:
    fill(make)
    for _ in range(2):  # Without a worker, the history shows sent runs.
        project.beat("--max-interval", "5")
    sync = schedule["warehouse-sync"]
    wait_until(lambda: len(list(sync.history)) >= RUNS, 60, "a history")
    wait_until(lambda: schedule.status().standbys, 30, "the standby")
    for file in take(new_page(**options), schedule, name, directory, redis_client):
        assert file.read_bytes().startswith(b"\x89PNG")
        size = file.stat().st_size
        assert name.startswith("phone-") or size < LARGEST, f"{file} is too large for the manual"
