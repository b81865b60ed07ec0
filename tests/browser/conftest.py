"""The dashboard of a real schedule in a real browser: Redis, web server, beat, worker, Chromium."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from playwright.sync_api import Browser, Page, expect, sync_playwright

from redbeat.schedule import Schedule
from tests.acceptance.processes import Project
from tests.browser.chromium import Watch, launched
from tests.conftest import Make
from tests.servers import RedisServer, free_port

#: Timeout of one test in seconds: beats and workers start slowly on a busy machine.
TIMEOUT = 180
#: Milliseconds within which a page must show what a test expects.
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
    """One browser for all tests; each test opens its own pages."""
    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        browser = launched(playwright)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def site(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of `celery redbeat web` on the shared Redis; the server stores nothing."""
    project = Project(tmp_path_factory.mktemp("web"), redis_server.url)
    url = f"http://127.0.0.1:{(port := free_port())}"
    try:
        web = project.start("redbeat", "web", "--port", str(port))
        web.wait_for("The schedule is at")
        yield url
    finally:
        project.end()


@pytest.fixture
def schedule(app: Celery) -> Schedule:
    """The schedule that the dashboard shows, to inspect it directly."""
    return Schedule(app)


@pytest.fixture
def make(make: Make) -> Make:
    """The fixture ``make``, with a task that the worker of these tests has."""
    return partial(make, task=TASK)


@pytest.fixture
def new_page(browser: Browser, site: str, redis_url: str) -> Iterator[NewPage]:
    """A function that opens a page with a Playwright context, and asserts that it is quiet.

    Quiet means: no error or warning in the console, no violation of the Content-Security-Policy, no
    dialog, no request to another host. Console lines that contain ``expected`` are allowed.
    """
    assert redis_url  # the Redis has been emptied
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
    """A page on a desktop, in light colours."""
    return new_page(viewport={"width": 1280, "height": 900}, color_scheme="light")
