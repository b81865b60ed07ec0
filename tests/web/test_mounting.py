"""Tests of the dashboard as a part of other applications; the examples are such applications."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from html import unescape
from pathlib import Path

import httpx
import pytest
from celery import Celery

from redbeat.management.schedule import Schedule
from redbeat.web.site import dashboard, mounted
from tests.conftest import Make
from tests.samples import long
from tests.servers import free_port
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
ANN = {"name": "ann", "password": "secret of ann"}

Serve = Callable[[str], httpx.Client]


@pytest.fixture
def serve(redis_url: str) -> Iterator[Serve]:
    """Return a function that runs an example, and returns a client of it."""
    started: list[subprocess.Popen[bytes]] = []
    clients: list[httpx.Client] = []

    def serve(example: str) -> httpx.Client:
        port = free_port()
        environ = {**os.environ, "PORT": str(port), "REDIS_URL": redis_url}
        command = [sys.executable, "-m", f"examples.{example}"]
        if example == "mounted_asgi":
            command[2:] = ["uvicorn", f"examples.{example}:app", "--port", str(port)]
        started.append(subprocess.Popen(command, cwd=ROOT, env=environ))
        client = httpx.Client(base_url=f"http://127.0.0.1:{port}", follow_redirects=True)
        clients.append(client)

        def answers() -> bool:
            try:
                return bool(client.get("/login").status_code)
            except httpx.TransportError:
                return False

        wait_until(answers, 30, "an answer of the example")
        return client

    yield serve
    for client in clients:
        client.close()
    for process in started:
        process.terminate()
        process.wait(10)


def check(client: httpx.Client, schedule: Schedule) -> None:
    """Use the dashboard at ``/schedule/`` as a user who is signed in."""
    page = client.get("/schedule/").text
    assert ">ann<" in page
    link = unescape(re.findall(r'<a href="(/schedule/entry\?[^"]*)"', page)[0])
    entry = client.get(link).text
    for url in re.findall(r'(?:href|src|action)="(/[^"]*)"', page + entry):
        assert url.startswith("/schedule/"), url
    assert client.get("/schedule/static/redbeat.css").status_code == 200
    found = re.search(r'name="csrf_token" value="([^"]+)"', entry)
    assert found is not None
    fields = {"csrf_token": found[1], "note": "closed"}
    path = "/schedule/entry/pause?name=orders"
    answer = client.post(path, data=fields)
    assert "Paused." in answer.text
    status = schedule["orders"].status
    assert (status.note, (status.reason or "").endswith("by ann")) == ("closed", True)
    assert client.post(path, data={"note": "forged"}).status_code == 400
    changed = client.patch("/schedule/api/entry?name=orders", json={"description": "All orders"})
    assert changed.json()["policy"] == {"description": "All orders"}


@pytest.mark.parametrize("example", ["mounted_flask", long("mounted_django")])
def test_a_wsgi_application(serve: Serve, make: Make, schedule: Schedule, example: str) -> None:
    make("orders")
    client = serve(example)
    for path in ("/schedule/", "/schedule/entry?name=orders", "/schedule/api/entries"):
        assert "orders" not in client.get(path).text
    client.post("/login", data={**ANN, "password": "guessed"})
    assert "orders" not in client.get("/schedule/").text
    client.post("/login", data=ANN)
    check(client, schedule)


@pytest.mark.long
def test_an_asgi_application(serve: Serve, make: Make, schedule: Schedule) -> None:
    make("orders")
    client = serve("mounted_asgi")
    for path in ("/schedule/", "/schedule/api/entries"):
        answer = client.get(path)
        assert (answer.status_code, "orders" in answer.text) == (403, False)
    client.auth = httpx.BasicAuth("ann", "secret of ann")
    check(client, schedule)


def test_a_request_without_a_user_is_refused(app: Celery, make: Make) -> None:
    make("orders")
    client = dashboard(app, secret_key="x").test_client()
    for path in ("/", "/entry?name=orders", "/api/entries", "/timeline", "/beats"):
        # A header of this name comes from the browser, not from the application.
        answer = client.get(path, headers={"Remote-User": "ann"})
        assert (answer.status_code, "orders" in answer.text) == (403, False)
    assert client.get("/", environ_overrides={"REMOTE_USER": "ann"}).status_code == 200


def test_the_environment_of_a_mounted_dashboard() -> None:
    environ = {"SCRIPT_NAME": "/app", "PATH_INFO": "/schedule/entry", "QUERY_STRING": "name=a"}
    assert mounted(environ, "/schedule", "ann") == {
        "SCRIPT_NAME": "/app/schedule",
        "PATH_INFO": "/entry",
        "QUERY_STRING": "name=a",
        "REMOTE_USER": "ann",
    }
