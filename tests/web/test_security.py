"""Tests of access control and of the security headers."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import pytest

from redbeat.web.auth import Access, host_in, is_loopback
from tests.conftest import Make
from tests.samples import one_in
from tests.web.conftest import Browser, Open

PATHS = ["/", "/?q=o", "/timeline", "/timeline?span=week", "/beats", "/entry?name=orders"]
PATHS += ["/entry/delete?name=orders", "/entry?name=bad", "/nowhere", "/?sort=odd"]
USERS = (("ann", "secret"), ("bob", "sécret: ☃"))
TOKEN = "0123456789abcdef"


def basic(user: str, password: str) -> dict[str, str]:
    """Return the Authorization header for a user and password."""
    return {"Authorization": "Basic " + b64encode(f"{user}:{password}".encode()).decode()}


class Inline(HTMLParser):
    """An HTML parser that collects what the Content-Security-Policy would block."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect a start tag and its attributes if the policy blocks them."""
        attributes = dict(attrs)
        if tag == "style" or (tag == "script" and "src" not in attributes):
            self.found.append(tag)
        for name, value in attrs:
            if name == "style" or name.startswith("on"):
                self.found.append(f"{tag} {name}")
            if name in ("src", "href", "action", "formaction") and not re.match(
                r"[/?#][^/]|[/#?]$", value or "/"
            ):
                self.found.append(f"{tag} {name}={value}")


@pytest.mark.parametrize("path", PATHS)
def test_every_page_has_the_headers_and_nothing_inline(
    browser: Browser, make: Make, broken: Callable[[str, str], None], path: str
) -> None:
    make("orders", 60)
    broken("bad", "{")
    answer = browser.ask(path)
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Referrer-Policy"] == "same-origin"
    assert answer.headers["Cache-Control"] == "no-store"
    parser = Inline()
    parser.feed(answer.text)
    assert parser.found == []


def test_the_cookie_is_for_this_page_only(browser: Browser, make: Make) -> None:
    make("orders")
    cookie = browser.ask("/entry", name="orders").headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie


@pytest.mark.parametrize("path", ["/static/redbeat.css", "/static/redbeat.js", "/static/icon.svg"])
def test_the_assets_are_in_the_package(browser: Browser, path: str) -> None:
    answer = browser.ask(path)
    text = answer.text
    answer.close()
    assert answer.status_code == 200
    assert not re.search(r"(?:https?:)?//(?!www\.w3\.org)[\w-]+\.\w", text)


@pytest.mark.parametrize("path", one_in(3, PATHS))
def test_access_without_a_password_is_refused(open_page: Open, path: str) -> None:
    for headers in ({}, basic("ann", "wrong"), basic("bob", "secret"), {"Authorization": "x"}):
        answer = open_page(headers, users=USERS).ask(path)
        assert answer.status_code == 401
        assert answer.headers["WWW-Authenticate"].startswith("Basic")
        assert "Schedule</h1>" not in answer.text


@pytest.mark.parametrize(("user", "password"), USERS)
def test_users_have_access(open_page: Open, user: str, password: str) -> None:
    page = open_page(basic(user, password), users=USERS).get("/")
    assert f"<span>{user}</span>" in page
    assert password not in page


def test_a_token_gives_access(open_page: Open) -> None:
    assert open_page(tokens=(TOKEN,)).ask("/").status_code == 401
    assert (
        open_page({"Authorization": f"Bearer {TOKEN}x"}, tokens=(TOKEN,)).ask("/").status_code
        == 401
    )
    page = open_page({"Authorization": f"Bearer {TOKEN}"}, tokens=(TOKEN,)).get("/")
    assert TOKEN not in page


def test_signing_in_with_a_token_and_out(open_page: Open, make: Make) -> None:
    make("orders")
    browser = open_page(tokens=(TOKEN,))
    login = browser.ask("/entry", name="orders")
    assert login.status_code == 401
    fields = dict(re.findall(r'name="(csrf_token|next)" value="([^"]*)"', login.text))
    assert browser.post("/login", **fields, token="wrong").status_code == 401
    assert browser.post("/login", token=TOKEN).status_code == 400  # the CSRF token is missing
    answer = browser.post("/login", **fields, token=TOKEN)
    assert (answer.status_code, answer.location) == (303, "/entry?name=orders")
    page = browser.get("/entry", name="orders")
    assert TOKEN not in page
    found = re.search(r'name="csrf_token" value="([^"]+)"', page)
    assert found is not None
    assert browser.post("/logout", csrf_token=found[1]).status_code == 303
    assert browser.ask("/").status_code == 401


@pytest.mark.parametrize("path", ["//evil.example", "https://evil.example", "/\\evil.example", "x"])
def test_signing_in_never_redirects_to_another_site(open_page: Open, path: str) -> None:
    browser = open_page(tokens=(TOKEN,))
    page = browser.get("/login")
    fields = dict(re.findall(r'name="(csrf_token)" value="([^"]*)"', page))
    assert browser.post("/login", **fields, next=path, token=TOKEN).location == "/"


#: Host names that are allowed in the test below.
ALLOWED = frozenset({"schedule.example.com", ".team.example", "fe80::1"})


@pytest.mark.parametrize(
    ("host", "code"),
    [
        ("localhost:5556", 200),
        ("127.0.0.1:5556", 200),
        ("[::1]:5556", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example:5556", 421),
        ("schedule.example.com", 200),
        ("SCHEDULE.example.com:443", 200),
        ("x.schedule.example.com", 421),
        ("a.team.example", 200),
        ("team.example", 200),
        ("xteam.example", 421),
        *(("[::1]evil.example", 421), ("[::2]:5556", 421), ("fe80", 421)),
    ],
)
def test_unknown_host_names_are_refused(open_page: Open, host: str, code: int) -> None:
    browser = open_page({"Host": host}, allowed_hosts=ALLOWED)
    answer = browser.ask("/")
    assert answer.status_code == code
    assert "Content-Security-Policy" in answer.headers


def test_on_other_addresses_host_names_are_checked_if_configured() -> None:
    assert Access("0.0.0.0").admits_host("any.example")
    some = Access("0.0.0.0", allowed_hosts=frozenset({"a.example"}))
    assert some.admits_host("A.example:80")
    assert not some.admits_host("b.example")


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("", False),
        ("10.0.0.1", False),
        ("localhost.example.com", False),
    ],
)
def test_which_addresses_are_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


def test_host_names_are_parsed() -> None:
    hosts = ["a.example:80", "A.example", "[::1]:80", "::1", "127.0.0.1:1"]
    names = [host_in(each) for each in hosts]
    assert names == ["a.example", "a.example", "::1", "::1", "127.0.0.1"]


def test_repr_of_an_access_contains_no_secret() -> None:
    text = repr(Access(users=(("ann", "hunter2"),), tokens=("hunter3",)))
    assert "hunter" not in text


def test_behind_a_proxy(open_page: Open, make: Make) -> None:
    make("orders")
    headers = {
        "X-Forwarded-Host": "schedule.example.com",
        "X-Forwarded-Prefix": "/redbeat",
        "X-Forwarded-Proto": "https",
        "X-Forwarded-User": "carol",
    }
    access: dict[str, Any] = {"allowed_hosts": frozenset({"schedule.example.com"})}
    page = open_page(headers, behind_proxy=True, **access).get("/")
    assert 'href="/redbeat/entry?name=orders"' in page
    assert "carol" in page
    answer = open_page(headers, behind_proxy=True, **access).ask("/entry", name="orders")
    assert "Secure" in answer.headers["Set-Cookie"]
    plain = open_page(headers).get("/")
    assert 'href="/entry?name=orders"' in plain
    assert "carol" not in plain


def test_an_internal_error_reveals_nothing(
    browser: Browser, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    schedule: Any = browser.client.application.extensions["schedule"]

    def fail() -> None:
        raise ZeroDivisionError("a secret")

    monkeypatch.setattr(schedule, "status", fail)
    answer = browser.ask("/beats")
    assert answer.status_code == 500
    assert "a secret" not in answer.text
    assert "ZeroDivisionError: a secret" in caplog.text
