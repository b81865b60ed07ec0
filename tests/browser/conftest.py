"""Fixtures of the dashboard tests: Redis, web server, beat, worker and Chromium."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from playwright.sync_api import Browser, Page, expect, sync_playwright

from redbeat.management.schedule import Schedule
from tests.acceptance.processes import Project
from tests.browser.chromium import Watch, launched
from tests.conftest import Make
from tests.servers import RedisServer, free_port

#: Timeout of one test in seconds: beats and workers start slowly on a busy machine.
TIMEOUT = 180
#: Milliseconds within which a page must show the expected content.
PATIENCE = 20_000

TASK = "tests.acceptance.project.note"

NewPage = Callable[..., Page]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Set the timeout of the tests in this directory."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(TIMEOUT))


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Start one browser for all tests; each test opens new pages in it."""
    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        browser = launched(playwright)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def site(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run `celery redbeat web` on the shared Redis without stored state, and return its URL."""
    project = Project(tmp_path_factory.mktemp("web"), redis_server.url)
    url = f"http://127.0.0.1:{(port := free_port())}"
    try:
        web = project.start("redbeat", "web", "--port", str(port))
        web.wait_for("The dashboard is at")
        yield url
    finally:
        project.end()


@pytest.fixture
def schedule(app: Celery) -> Schedule:
    """Return the schedule that the dashboard shows, for direct inspection."""
    return Schedule(app)


@pytest.fixture
def make(make: Make) -> Make:
    """Return the fixture ``make`` with a task that the worker in these tests has."""
    return partial(make, task=TASK)


@pytest.fixture
def new_page(browser: Browser, site: str, redis_url: str) -> Iterator[NewPage]:
    """Return a function that opens a page, and assert afterwards that the page had no problems.

    Problems are errors and warnings in the console, violations of the Content-Security-Policy,
    dialogs, and requests to other hosts. Console lines that contain ``expected`` are allowed. The
    arguments of the function are those of a Playwright context.
    """
    assert redis_url  # The fixture has emptied this Redis.
    contexts, watches = [], []

    def new_page(expected: str = "", **options: Any) -> Page:
        context = browser.new_context(base_url=site, **options)
        context.set_default_timeout(PATIENCE)
        page = context.new_page()
        contexts.append(context)
        watches.append(Watch(page, expected))
        return page

    yield new_page
    for context in contexts:
        context.close()
    assert [line for watch in watches for line in watch.problems] == []


@pytest.fixture
def page(new_page: NewPage) -> Page:
    """Return a desktop page with light colours."""
    return new_page(viewport={"width": 1280, "height": 900}, color_scheme="light")
