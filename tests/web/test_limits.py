"""Tests of the limits of the HTTP server, with real connections, and of wrong credentials."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from threading import Thread
from typing import Any

import pytest
from waitress import wasyncore  # type: ignore[import-untyped]

from redbeat.management.schedule import Schedule
from redbeat.web.auth import Access
from redbeat.web.site import Served
from tests.acceptance.processes import Project
from tests.waiting import wait_until
from tests.web.conftest import Browser, Open
from tests.web.test_security import TOKEN, USERS, basic
from tests.web.test_serving import address, fetch

Serve = Callable[..., tuple[str, int]]

GET = b"GET /login HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST /login HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture
def serve(schedule: Schedule) -> Iterator[Serve]:
    """Return a function that starts the server in a thread and returns its address."""
    running: list[tuple[Any, Thread]] = []

    def serve(**limits: int) -> tuple[str, int]:
        server = Served(schedule, Access(tokens=(TOKEN,)), 0, **limits).server
        thread = Thread(target=server.run)
        thread.start()
        running.append((server, thread))
        return "127.0.0.1", server.effective_port

    yield serve
    for server, thread in running:
        server.task_dispatcher.shutdown()
        sockets = dict(server._map)  # noqa: SLF001 - waitress has no other way to end run()
        server._map.clear()  # noqa: SLF001
        server.pull_trigger()
        thread.join(10)
        wasyncore.close_all(sockets)
        assert not thread.is_alive()


def answer_to(where: tuple[str, int], request: bytes) -> bytes:
    """Send bytes on a new connection; return the answer up to the end of the connection."""
    with socket.create_connection(where, timeout=20) as connection:
        connection.sendall(request)
        return rest_of(connection)


def rest_of(connection: socket.socket) -> bytes:
    """Return what is still received until the server closes the connection."""
    received = b""
    try:
        while chunk := connection.recv(65536):
            received += chunk
    except ConnectionResetError:
        pass
    return received


def test_a_large_body_is_refused_when_it_is_announced(serve: Serve) -> None:
    answer = answer_to(serve(), POST + b"Content-Length: 1000000000\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 413 ")


def test_a_large_body_in_chunks_is_refused(serve: Serve) -> None:
    with socket.create_connection(serve(max_request_body_size=1000), timeout=20) as connection:
        connection.sendall(POST + b"Transfer-Encoding: chunked\r\n\r\n")
        try:
            for _ in range(1000):
                connection.sendall(b"400\r\n" + b"x" * 1024 + b"\r\n")
        except OSError:
            return
        assert rest_of(connection).startswith(b"HTTP/1.1 413 ")


def test_a_large_header_is_refused(serve: Serve) -> None:
    where = serve()
    answer = answer_to(where, GET + b"X-Filler: " + b"x" * 40_000 + b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.0 431 ")
    assert b" 200 " in answer_to(where, GET + b"Connection: close\r\n\r\n")


@pytest.mark.parametrize("start", [GET, POST + b"Content-Length: 1000\r\n\r\n"])
def test_a_request_in_small_pieces_is_cut_off(serve: Serve, start: bytes) -> None:
    where = serve(channel_timeout=1, cleanup_interval=1)
    with socket.create_connection(where, timeout=20) as connection:
        connection.sendall(start)
        connection.settimeout(0.1)
        wait_until(lambda: is_closed(connection), 10, "the end of the connection")


def is_closed(connection: socket.socket) -> bool:
    """Send one more byte; return whether the server has closed the connection."""
    try:
        connection.sendall(b"x")
        return not connection.recv(1000)
    except TimeoutError:
        return False
    except OSError:
        return True


def test_half_open_requests_do_not_stop_the_server(serve: Serve) -> None:
    where = serve()
    opened = [socket.create_connection(where, timeout=20) for _ in range(120)]
    try:
        for connection in opened:
            connection.sendall(GET)
        assert b" 200 " in answer_to(where, GET + b"Connection: close\r\n\r\n")
    finally:
        for connection in opened:
            connection.close()


def test_the_server_answers_again_when_too_many_connections_have_ended(serve: Serve) -> None:
    where = serve(connection_limit=20, channel_timeout=1, cleanup_interval=1)
    opened = [socket.create_connection(where, timeout=20) for _ in range(40)]
    try:
        assert b" 200 " in answer_to(where, GET + b"Connection: close\r\n\r\n")
    finally:
        for connection in opened:
            connection.close()


@pytest.mark.long
def test_the_dashboard_outlives_600_half_open_requests(project: Project) -> None:
    process = project.start("redbeat", "web", "--port", "0")
    url = address(process)
    port = int(url.rstrip("/").rpartition(":")[2])
    opened = [socket.create_connection(("127.0.0.1", port), timeout=20) for _ in range(600)]
    try:
        for connection in opened:
            connection.sendall(GET)
        wait_until(lambda: fetch(url)[0] == 200, 60, "an answer")
    finally:
        for connection in opened:
            connection.close()


def statuses(browser: Browser, count: int) -> list[int]:
    """Return the status codes of ``count`` requests."""
    return [browser.ask("/").status_code for _ in range(count)]


@pytest.mark.parametrize("wrong", [basic("ann", "wrong"), {"Authorization": "Bearer no"}])
def test_wrong_credentials_are_limited(open_page: Open, wrong: dict[str, str]) -> None:
    browser = open_page(wrong, users=USERS, tokens=(TOKEN,))
    assert statuses(browser, 12) == [401] * 10 + [429] * 2
    answer = browser.ask("/")
    assert 0 < int(answer.headers["Retry-After"]) <= 60
    assert "Too many" in answer.text
    browser.headers = basic(*USERS[0])
    assert browser.ask("/").status_code == 429
    browser.headers = {"X-Forwarded-For": "10.0.0.1", **basic(*USERS[0])}
    assert browser.ask("/").status_code == 429  # nobody trusts this header


def test_wrong_tokens_in_the_form_are_limited(open_page: Open) -> None:
    browser = open_page(tokens=(TOKEN,))
    browser.client.application.config["WTF_CSRF_ENABLED"] = False
    codes = [browser.post("/login", token=f"wrong{n}").status_code for n in range(12)]
    assert codes == [401] * 10 + [429] * 2
    assert browser.post("/login", token=TOKEN).status_code == 429


@pytest.mark.parametrize("way", ["form", "header"])
def test_a_long_token_is_right_after_wrong_ones(open_page: Open, way: str) -> None:
    long = "0123456789abcdefghij"
    browser = open_page({"Authorization": "Bearer no"}, tokens=(long, TOKEN))
    browser.client.application.config["WTF_CSRF_ENABLED"] = False
    assert statuses(browser, 12) == [401] * 10 + [429] * 2
    browser.headers = {}
    if way == "form":
        assert browser.post("/login", token=TOKEN).status_code == 429
        assert browser.post("/login", token=long).status_code == 303
    else:
        browser.headers = {"Authorization": f"Bearer {TOKEN}"}
        assert browser.ask("/").status_code == 429
        browser.headers = {"Authorization": f"Bearer {long}"}
        assert browser.ask("/").status_code == 200


def test_requests_without_credentials_are_not_limited(open_page: Open) -> None:
    assert statuses(open_page(users=USERS), 30) == [401] * 30


def test_right_credentials_are_not_limited(open_page: Open) -> None:
    assert statuses(open_page(basic(*USERS[0]), users=USERS), 30) == [200] * 30


def test_other_addresses_are_not_locked_out(open_page: Open) -> None:
    browser = open_page(users=USERS, behind_proxy=True)
    browser.headers = {"X-Forwarded-For": "2001:db8::1", **basic("ann", "wrong")}
    assert statuses(browser, 11)[-1] == 429
    browser.headers = {"X-Forwarded-For": "2001:db8::2", **basic(*USERS[0])}
    assert browser.ask("/").status_code == 429  # the same network of IPv6
    browser.headers = {"X-Forwarded-For": "2001:db8:0:1::1", **basic(*USERS[0])}
    assert browser.ask("/").status_code == 200


def test_a_known_browser_is_not_locked_out_by_its_address(open_page: Open) -> None:
    known = open_page(basic(*USERS[0]), users=USERS)
    assert known.ask("/").status_code == 200
    attacker = Browser(known.client.application.test_client(), basic("ann", "wrong"))
    assert statuses(attacker, 11)[-1] == 429
    assert known.ask("/").status_code == 200
    assert attacker.ask("/").status_code == 429
    known.headers = basic("ann", "wrong")
    assert statuses(known, 11) == [401] * 10 + [429]


def test_all_addresses_together_are_limited(open_page: Open) -> None:
    browser = open_page(users=USERS, behind_proxy=True)
    known = Browser(browser.client.application.test_client(), basic(*USERS[0]))
    assert known.ask("/").status_code == 200
    codes = []
    for number in range(110):
        browser.headers = {"X-Forwarded-For": f"10.0.0.{number}", **basic("ann", "wrong")}
        codes.append(browser.ask("/").status_code)
    assert codes == [401] * 100 + [429] * 10
    assert known.ask("/").status_code == 200


def test_a_cookie_is_worth_nothing_after_signing_out(open_page: Open) -> None:
    browser = open_page(tokens=(TOKEN,))
    browser.client.application.config["WTF_CSRF_ENABLED"] = False
    assert browser.post("/login", token=TOKEN).status_code == 303
    assert browser.ask("/").status_code == 200
    cookie = browser.client.get_cookie("redbeat_web")
    assert cookie is not None
    other = Browser(browser.client.application.test_client(), {})
    other.post("/login", token=TOKEN)
    assert browser.post("/logout").status_code == 303
    browser.client.set_cookie("redbeat_web", cookie.value)
    assert browser.ask("/").status_code == 401
    assert other.ask("/").status_code == 200


@pytest.mark.parametrize(
    ("proxied", "warned"),
    [
        ({"X-Forwarded-For": "10.0.0.1", "X-Forwarded-Proto": "http"}, True),
        ({"X-Forwarded-For": "10.0.0.1", "X-Forwarded-Proto": "https"}, False),
        ({"X-Forwarded-For": "127.0.0.1"}, False),
    ],
)
def test_signing_in_without_tls_warns(
    open_page: Open, proxied: dict[str, str], warned: bool
) -> None:
    browser = open_page(proxied, tokens=(TOKEN,), behind_proxy=True)
    assert ("not encrypted" in browser.ask("/").text) is warned
