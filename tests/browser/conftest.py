"""The page of a real schedule in a real browser: Redis, web server, beat, worker, Chromium."""

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

#: Seconds that one test may take: beats and workers start slowly on a busy machine.
TIMEOUT = 180
#: Milliseconds in which a page has to show what is expected of it.
PATIENCE = 20_000

TASK = "tests.acceptance.project.note"

NewPage = Callable[..., Page]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the tests of this directory the time that they need."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(TIMEOUT))


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One browser for all tests; each has pages of its own."""
    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        browser = launched(playwright)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def site(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of `celery redbeat web` on the shared Redis; it holds nothing of the schedule."""
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
    """The schedule that the page shows, for looking at it from elsewhere."""
    return Schedule(app)


@pytest.fixture
def make(make: Make) -> Make:
    """The fixture of this name for all tests, with a task that the worker of these tests has."""
    return partial(make, task=TASK)


@pytest.fixture
def new_page(browser: Browser, site: str, redis_url: str) -> Iterator[NewPage]:
    """Open a page, with the arguments of a Playwright context; all of them must be quiet.

    ``expected`` is a part of the lines in the console that may be there all the same.

    Quiet is: no error or warning in the console, nothing that the Content-Security-Policy blocks,
    no dialog, no request to another host.
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
    """A page of a desktop, in light colours."""
    return new_page(viewport={"width": 1280, "height": 900}, color_scheme="light")
