"""Tests of the dashboard command in its own process, over HTTP."""

from __future__ import annotations

import re
import select
import socket
import sys
import urllib.error
import urllib.request
from base64 import b64encode
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from celery import Celery

from tests.acceptance.processes import Process, Project
from tests.cli.commands import run_command
from tests.conftest import Make
from tests.servers import RedisServer

TOKEN = "0123456789abcdef"


def address(process: Process) -> str:
    """Wait until the dashboard is served; return its URL."""
    process.wait_for("press Ctrl-C")
    found = re.search(r"http://\S+/", process.output())
    assert found is not None
    return found[0]


def fetch(url: str, **headers: str) -> tuple[int, str]:
    """Return the status code and the body of a response."""
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_the_page_is_served_and_ends(project: Project, make: Make) -> None:
    make("orders")
    process = project.start("redbeat", "web", "--port", "0")
    url = address(process)
    assert url.startswith("http://127.0.0.1:")
    code, page = fetch(url)
    assert code == 200
    assert ">orders</a>" in page
    for asset in re.findall(r'(?:href|src)="(/static/[^"]+)"', page):
        assert fetch(url.rstrip("/") + asset)[0] == 200
    assert fetch(url, Host="evil.example")[0] == 421
    assert process.stop() == 0
    assert "Traceback" not in process.output()


def test_a_script_gets_the_url(project: Project) -> None:
    process = project.start("redbeat", "web", "--port", "0", "--json")
    process.wait_for('{"url": "http://127.0.0.1:')
    assert process.stop() == 0


def test_the_check_that_the_process_lives_is_answered_while_pages_wait(
    tmp_path: Path,
) -> None:
    with RedisServer() as server, ExitStack() as stack:
        project = Project(tmp_path, server.url)
        stack.callback(project.end)
        url = address(project.start("redbeat", "web", "--port", "0"))
        assert fetch(url)[0] == 200
        server.pause()
        stack.callback(server.resume)
        parts = urlsplit(url)
        waiting = []
        for _ in range(20):
            client = socket.create_connection((parts.hostname or "", parts.port or 0))
            waiting.append(stack.enter_context(client))
            client.sendall(f"GET / HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode())
        assert fetch(f"{url}healthz") == (200, "the dashboard is running\n")
        answered, _, _ = select.select(waiting, [], [], 0)
        assert answered == []


@pytest.mark.long
def test_credentials_come_from_the_environment(project: Project) -> None:
    secret = {"REDBEAT_WEB_BASIC_AUTH": "ann:hunter2 bob:hunter3", "REDBEAT_WEB_TOKEN": TOKEN}
    process = project.start("redbeat", "web", "--port", "0", "--host", "0.0.0.0", env=secret)
    url = address(process).replace("0.0.0.0", "127.0.0.1")
    assert fetch(url)[0] == 401
    basic = b64encode(b"bob:hunter3").decode()
    assert fetch(url, Authorization=f"Basic {basic}")[0] == 200
    assert fetch(url, Authorization=f"Bearer {TOKEN}")[0] == 200
    assert fetch(url, Authorization="Basic YTpi")[0] == 401
    assert "Wrong credentials from 127.0.0.1" in process.output()
    assert "hunter" not in process.output()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_serving_other_hosts_needs_credentials(app: Celery, host: str) -> None:
    ran = run_command(app, "web", "--host", host)
    assert ran.code == 2
    assert "--basic-auth or --token" in ran.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *((["--basic-auth", text], "USER:PASSWORD") for text in ("", "ann", "ann:", ":secret")),
        (["--token", "short"], "16 characters"),
        (["--port", "70000"], "70000"),
    ],
)
def test_wrong_options_are_refused(app: Celery, options: list[str], message: str) -> None:
    ran = run_command(app, "web", *options)
    assert ran.code == 2
    assert message in ran.err


def test_a_wrong_password_is_not_printed(app: Celery) -> None:
    ran = run_command(app, "web", "--basic-auth", ":hunter2")
    assert ran.code == 2
    assert "hunter2" not in ran.err + ran.out


def test_a_port_in_use_is_an_error(app: Celery) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ran = run_command(app, "web", "--port", str(taken.getsockname()[1]))
    assert ran.code == 1
    assert "Cannot listen on" in ran.err


@pytest.mark.parametrize(
    ("options", "warning"),
    [
        (["--host", "0.0.0.0"], "cross the network unencrypted"),
        (["--host", "0.0.0.0", "--behind-proxy"], "can forge the X-Forwarded headers"),
        ([], ""),
    ],
)
def test_plain_http_for_other_hosts_is_warned_about(
    app: Celery, options: list[str], warning: str
) -> None:
    with socket.create_server(("0.0.0.0", 0)) as taken:
        port = str(taken.getsockname()[1])
        ran = run_command(app, "web", "--port", port, "--basic-auth", "ann:hunter2", *options)
    assert warning in " ".join(ran.err.split())
    assert ("Warning" in ran.err) is bool(warning)


@pytest.mark.parametrize("module", ["flask", "flask_wtf", "limits", "waitress"])
def test_a_missing_extra_is_an_error(
    app: Celery, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    ours = ("redbeat.web.", "redbeat.cli.web")
    for name in [name for name in sys.modules if name.startswith(ours)]:
        monkeypatch.delitem(sys.modules, name)
    for name in [name for name in sys.modules if name.partition(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    assert "\n  web " in run_command(app, "--help").out
    ran = run_command(app, "web")
    assert ran.code == 1
    assert "pip install 'celery-redbeat[web]'" in ran.err
    assert module in ran.err
