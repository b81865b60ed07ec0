"""Fixtures: the dashboard of an empty schedule, and a client that fills in forms like a browser."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest
import redis
from celery import Celery
from flask import Flask
from flask.testing import FlaskClient
from jinja2 import BytecodeCache, FileSystemBytecodeCache
from werkzeug.test import TestResponse

from redbeat.management.schedule import Schedule
from redbeat.web.auth import Access
from redbeat.web.site import create_app
from redbeat.web.timeline import forecasts_of

Open = Callable[..., "Browser"]

TOKEN = re.compile(r'name="csrf_token" value="([^"]+)"')


class Browser:
    """A client that keeps cookies and sends ``headers`` with each request."""

    def __init__(self, client: FlaskClient, headers: dict[str, str]) -> None:
        self.client = client
        self.headers = headers

    def get(self, path: str, code: int = 200, **query: str) -> str:
        """Return the text of a page; assert its status code."""
        answer = self.ask(path, **query)
        assert answer.status_code == code, answer.text
        return answer.text

    def ask(self, path: str, **query: str) -> TestResponse:
        """Return the response to a GET request."""
        return self.client.get(path, query_string=query or None, headers=self.headers)

    def send(self, path: str, name: str = "", /, **fields: str) -> TestResponse:
        """Submit a form with these fields and a valid CSRF token; return the response."""
        page = (self.ask("/entry", name=name) if name else self.ask("/new")).text
        found = TOKEN.search(page)
        token = {"csrf_token": unescape(found[1])} if found else {}
        return self.post(path, name, **token, **fields)

    def post(self, path: str, name: str = "", /, **fields: str) -> TestResponse:
        """Submit a form with exactly these fields; return the response."""
        return self.client.post(
            path, query_string={"name": name}, data=fields, headers=self.headers
        )

    def done(self, path: str, name: str, /, **fields: str) -> str:
        """Submit a form that must be accepted; return the page it redirects to."""
        answer = self.send(path, name, **fields)
        assert answer.status_code == 303, answer.text
        following = self.client.get(answer.location, headers=self.headers)
        assert following.status_code == 200
        return following.text


@pytest.fixture
def schedule(app: Celery) -> Schedule:
    """Return the schedule that the dashboard shows."""
    return Schedule(app)


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> BytecodeCache:
    """Return a cache of compiled templates.

    Compiling the templates for the first page takes longer than the rest of a test.
    """
    return FileSystemBytecodeCache(str(tmp_path_factory.mktemp("templates")))


def create_site(schedule: Schedule, compiled: BytecodeCache, **access: Any) -> Flask:
    """Create the dashboard with :class:`Access` options; an error gives a page, as for users."""
    site = create_app(schedule, Access(**access))
    site.config["PROPAGATE_EXCEPTIONS"] = False
    site.jinja_env.bytecode_cache = compiled
    return site


@pytest.fixture
def open_page(schedule: Schedule, compiled: BytecodeCache) -> Open:
    """Return a function that creates the dashboard with `Access` options and returns a browser."""

    def open_page(headers: dict[str, str] | None = None, **access: Any) -> Browser:
        return Browser(create_site(schedule, compiled, **access).test_client(), headers or {})

    return open_page


@pytest.fixture(scope="session")
def shared_site(compiled: BytecodeCache) -> Flask:
    """Return a dashboard without access control. Creating it takes longer than most tests."""
    return create_site(Schedule(Celery(set_as_current=False)), compiled)


@pytest.fixture
def browser(shared_site: Flask, schedule: Schedule) -> Browser:
    """Return a browser that sends no credentials.

    All tests share its dashboard. A test that changes a setting of the dashboard needs `open_page`.
    """
    shared_site.extensions.update(schedule=schedule, forecasts=forecasts_of(schedule))
    return Browser(shared_site.test_client(), {})


@pytest.fixture
def broken(redis_client: redis.Redis) -> Callable[[str, str], None]:
    """Return a function that puts an unreadable entry into quarantine."""

    def broken(name: str, text: str) -> None:
        redis_client.hset(f"redbeat:{name}", "definition", text)
        redis_client.zadd("redbeat::schedule", {f"redbeat:{name}": -1})
        note = '{"reason": "definition: is no JSON", "since": 1790000000, "digest": "x"}'
        redis_client.hset(".redbeat::quarantine", f"redbeat:{name}", note)

    return broken
