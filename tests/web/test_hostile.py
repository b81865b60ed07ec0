"""Tests that no request and no stored data makes the dashboard fail."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote_from_bytes, urlencode

import pytest
import redis
from celery import Celery
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import BytecodeCache

from redbeat.management.schedule import Schedule
from redbeat.web.timeline import forecasts_of
from tests.conftest import Make
from tests.fuzz.hostile import definitions, lists, metas, policies, scores, states
from tests.fuzz.test_imports import cases
from tests.samples import one_in
from tests.web.conftest import Browser, Open, create_site

TOKEN = "0123456789abcdef"

#: The pages and actions, without the name of an entry.
PATHS = (
    *("/", "/timeline", "/beats", "/entry", "/entry/delete", "/entry/pause", "/entry/resume"),
    *("/entry/trigger", "/entry/edit", "/entry/preview", "/quarantine/retry", "/login"),
    *("/logout", "/static/redbeat.css", "/static/", "/nowhere"),
)

FIELDS = (
    *("name", "q", "task", "state", "static", "sort", "after", "per", "span", "next", "token"),
    *("note", "kind", "rule", "timezone", "seen", "csrf_token"),
)

VALUES: tuple[bytes, ...] = (
    *(b"", b"0", b"-1", b"50", b"nan", b"nan x", b"inf x", b"-inf x", b"1e999 x", b"1_0 x"),
)
VALUES += (
    b"9" * 5000,
    b"1 " + b"\xff" * 300,
    b"0x10 x",
    b"1 \xed\xa0\x80",
    b" ",
    b"%",
    b"*[",
    b"a",
)
VALUES += ("٣".encode(), "²".encode(), b"\xff", b"nm\xff", b"nm\\xff", b"\x00", b"\r\n", b"x" * 600)
VALUES += (b"orders", b"week", b"paused", b"-task", b"name", b"static", b"cron", b"every", b"rrule")
VALUES += (b"* * * * *", b"1e309", b"-5", b"0001-01-01T00:00", b"9999-12-31T23:59+14:00", b"../..")
VALUES += (b"RRULE:FREQ=YEARLY;COUNT=" + b"9" * 40, b"Europe/Paris", b"UTC\x00", b"?" * 400)

#: Names of entries, as bytes; in each pair both look alike on a page.
ALIKE = [(b"nm\xff", b"nm\\xff"), (b"a\xed\xa0\x80", b"a\\xed\\xa0\\x80"), (b"\x80", b"\\x80")]

values = st.one_of(st.sampled_from(VALUES), st.binary(max_size=40))
fields = st.lists(st.tuples(st.sampled_from(FIELDS), values), max_size=4)


GOOD = '{"name": "good", "task": "t", "schedule": {"__type__": "interval", "every": 3600}}'


class Scene:
    """A server and an app, which all cases share."""

    def __init__(self, url: str) -> None:
        self.client = redis.Redis.from_url(url)
        self.app = Celery("fuzz", broker="memory://", set_as_current=False)
        self.app.conf.update(redbeat_redis_url=url, timezone="UTC", redbeat_lock_key=None)

    def begin(self) -> None:
        """Delete all data, and store one good entry."""
        self.client.flushall()
        self.client.hset("redbeat:good", "definition", GOOD)
        self.client.zadd("redbeat::schedule", {"redbeat:good": 1})

    def end(self) -> None:
        self.client.close()
        self.app.redbeat_redis.close()


@pytest.fixture(scope="module")
def scene(redis_server: Any) -> Iterator[Scene]:
    """Return a server and an app that all cases share."""
    scene = Scene(redis_server.url)
    yield scene
    scene.end()


@pytest.fixture(scope="module")
def clients(scene: Scene, compiled: BytecodeCache) -> list[Any]:
    """Return clients of an open and of a protected dashboard, without CSRF protection."""
    found = []
    protected: dict[str, Any] = {"users": (("ann", "secret"),), "tokens": (TOKEN,)}
    for access in ({}, protected):
        site = create_site(Schedule(scene.app), compiled, **access)
        site.config["WTF_CSRF_ENABLED"] = False
        found.append(site.test_client())
    return found


def query_of(pairs: list[tuple[str, bytes]], raw: bool) -> str:
    """Return a query string; ``raw`` leaves bytes as they are instead of escaping them."""
    if raw:
        return "&".join(f"{name}={value.decode('latin-1')}" for name, value in pairs)
    return urlencode(pairs)


@cases(120)
@given(
    path=st.one_of(st.sampled_from(PATHS), st.binary(max_size=20).map(quote_from_bytes)),
    query=fields,
    form=fields,
    raw=st.booleans(),
    post=st.booleans(),
    headers=st.dictionaries(
        st.sampled_from(
            ("HTTP_COOKIE", "HTTP_AUTHORIZATION", "HTTP_REFERER", "CONTENT_TYPE", "HTTP_HOST")
        ),
        st.one_of(
            values.map(lambda value: value.decode("latin-1")),
            st.sampled_from(
                ("redbeat_zone=../x", "redbeat_web=a.b.c", "remember_token=a|b", "Basic /w==")
            ),
        ),
        max_size=2,
    ),
)
def test_no_request_fails(
    scene: Scene,
    clients: list[Any],
    path: str,
    query: list[tuple[str, bytes]],
    form: list[tuple[str, bytes]],
    raw: bool,
    post: bool,
    headers: dict[str, str],
) -> None:
    scene.begin()
    scene.client.hset(b"redbeat:nm\xff", "definition", "{")
    scene.client.zadd("redbeat::schedule", {b"redbeat:nm\xff": 5})
    for client in clients:
        environ = {"QUERY_STRING": query_of(query, raw), "HTTP_HOST": "localhost", **headers}
        answer = client.open(
            "/" + path.lstrip("/"),
            method="POST" if post else "GET",
            data=urlencode(form) if post else None,
            content_type="application/x-www-form-urlencoded" if post else None,
            environ_overrides=environ,
        )
        assert answer.status_code < 500, answer.text
        answer.data.decode("utf-8")
        answer.close()


@pytest.mark.parametrize("pair", ALIKE)
def test_every_name_has_one_url(
    browser: Browser, redis_client: redis.Redis, pair: tuple[bytes, bytes]
) -> None:
    for number, name in enumerate(pair):
        redis_client.hset(b"redbeat:" + name, "definition", json.dumps({"task": f"proj.t{number}"}))
        redis_client.zadd("redbeat::schedule", {b"redbeat:" + name: -1})
        redis_client.hset(".redbeat::quarantine", b"redbeat:" + name, "{}")
    urls = [f"/entry?name={quote_from_bytes(name, safe='')}" for name in pair]
    for page in (browser.get("/"), browser.get("/", sort="name"), browser.get("/beats")):
        assert [page.count(f'"{url}"') for url in urls] == [1, 1]
    for number, url in enumerate(urls):
        page = browser.get(url)
        assert f"proj.t{number}" in page
        assert f"proj.t{1 - number}" not in page


@pytest.mark.parametrize("name", [b"nm\xff", b"a\xed\xa0\x80", "naïve ☃".encode(), b"\x1b[31m\r\n"])
def test_actions_on_any_name(open_page: Open, redis_client: redis.Redis, name: bytes) -> None:
    browser = open_page()
    browser.client.application.config["WTF_CSRF_ENABLED"] = False
    text = name.decode("utf-8", "surrogateescape")
    definition = {"name": text, "task": "t", "schedule": {"__type__": "interval", "every": 60}}
    redis_client.hset(b"redbeat:" + name, "definition", json.dumps(definition))
    redis_client.zadd("redbeat::schedule", {b"redbeat:" + name: 4e9})
    query = f"name={quote_from_bytes(name, safe='')}"
    for action in ("entry/pause", "entry/resume", "entry/trigger", "quarantine/retry"):
        answer = browser.client.post(f"/{action}?{query}", data={"note": "☃"})
        if text.isascii() or ("\udcff" not in text and "\udced" not in text):
            assert (answer.status_code, answer.location) == (303, f"/entry?{query}")
        else:  # an entry whose name is not UTF-8 cannot be read, so it can only be deleted
            assert answer.status_code in (303, 409)
        browser.get(f"/entry?{query}")
    for path in ("/", "/timeline", "/timeline?span=week", "/beats", f"/entry/delete?{query}"):
        browser.get(path)
    assert browser.client.post(f"/entry/delete?{query}").status_code == 303
    assert "Deleted" in browser.get("/")
    assert "Deleted" not in browser.get("/")
    assert redis_client.exists(b"redbeat:" + name) == 0


def test_messages_that_no_page_shows_do_not_fill_the_cookie(open_page: Open, make: Make) -> None:
    browser = open_page()
    browser.client.application.config["WTF_CSRF_ENABLED"] = False
    name = "☃" * 300
    make(name)
    for _ in range(15):
        assert browser.post("/quarantine/retry", name).status_code == 303
    cookie = browser.client.get_cookie("redbeat_web")
    assert cookie is not None
    assert len(cookie.value) < 3000


def test_a_missing_calendar_is_the_problem_of_its_entry(
    browser: Browser, make: Make, redis_client: Any
) -> None:
    make("orders")
    redis_client.hset("redbeat:orders", "policy", '{"exclude": ["gone"]}')
    assert "there is no calendar &#39;gone&#39;" in browser.get("/entry", name="orders")
    browser.get("/timeline")


@pytest.mark.parametrize(
    "per", ["", "-1", "0", "nan", "1e9", "9" * 5000, "\u0665\u0660", "²", "50.0"]
)
def test_an_invalid_page_size_means_the_default(browser: Browser, make: Make, per: str) -> None:
    make("orders")
    assert "<option selected>50</option>" in browser.get("/", per=per)


@pytest.mark.parametrize(
    "query",
    [
        *("after=nan x", "after=-nan x", "after=1_0 x", "after=0x10 x", "after=1", "after=1 "),
        *("after= ", "sort=task&after=" + "9" * 5000, "sort=task&after=٣", "sort=task&after=-1"),
        *("sort=odd", "sort=-", "state=odd", "static=odd", "q=" + "x" * 501, "task=" + "*" * 501),
        "q=" + "x" * 20_000,
    ],
)
@pytest.mark.parametrize("start", one_in(2, ["", "per=50&"]))
def test_an_invalid_query_is_answered_with_a_message(
    browser: Browser, make: Make, start: str, query: str
) -> None:
    make("orders")
    page = browser.client.get("/?" + start + query)
    assert page.status_code == 400
    assert 'class="message failed"' in page.text


@pytest.mark.parametrize("after", ["inf x", "-inf x", "1e400 x", "-0.5 x"])
def test_a_cursor_at_the_limits_of_numbers(browser: Browser, make: Make, after: str) -> None:
    make("orders")
    assert browser.client.get(f"/?after={after}&sort=due").status_code == 200
    for sort in ("-due", "name"):
        page = browser.client.get(f"/?after={after}&sort={sort}")
        assert (page.status_code, "is not a valid cursor" in page.text) == (400, True)
        assert browser.client.get(f"/?after=999999999&sort={sort}").status_code == 200


def test_two_names_in_a_url_are_refused(browser: Browser, make: Make) -> None:
    make("a")
    assert "several" in browser.get("/entry?name=a&name=b", 400)
    assert browser.client.get("/?q=a&q=nothing").status_code == 200


entries = st.fixed_dictionaries(
    {"definition": definitions, "meta": metas, "policy": policies},
    optional={
        "beat_state": states,
        "inbox": lists("inbox"),
        "history": lists("history"),
        "results": lists("results"),
        "waits": values,
    },
)


@cases(30)
@given(
    hashes=st.lists(st.tuples(values.filter(bool), entries, scores), min_size=1, max_size=4),
    notes=st.lists(st.tuples(values, st.one_of(values, definitions)), max_size=3),
    beats=st.lists(st.tuples(values, scores), max_size=3),
    lock=st.one_of(st.none(), values),
    span=st.sampled_from(("hour", "day", "week")),
)
def test_no_stored_data_fails_a_page(
    scene: Scene,
    clients: list[Any],
    hashes: list[tuple[bytes, dict[str, Any], float]],
    notes: list[tuple[bytes, Any]],
    beats: list[tuple[bytes, float]],
    lock: bytes | None,
    span: str,
) -> None:
    scene.begin()
    site = clients[0]
    for name, fields, score in hashes:
        key = b"redbeat:" + name
        scene.client.hset(key, mapping={field: as_bytes(value) for field, value in fields.items()})
        scene.client.zadd("redbeat::schedule", {key: score})
    for name, note in notes:
        scene.client.hset(".redbeat::quarantine", b"redbeat:" + name, as_bytes(note))
    for member, score in beats:
        scene.client.zadd(".redbeat::beats", {member: score})
    if lock is not None:
        scene.client.set("redbeat::lock", lock)
    site.application.extensions["forecasts"] = forecasts_of(Schedule(scene.app))
    paths = ["/", "/?sort=name", "/?sort=-last", "/?q=a&task=t", "/beats", f"/timeline?span={span}"]
    paths += [f"/entry?name={quote_from_bytes(name, safe='')}" for name, _, _ in hashes]
    for path in paths:
        answer = site.get(path)
        assert answer.status_code < 500, (path, answer.text)


def as_bytes(value: str | bytes) -> bytes:
    """Return a stored value as bytes; lone surrogates become bytes that are not UTF-8."""
    return value if isinstance(value, bytes) else value.encode("utf-8", "surrogatepass")


PLAIN = {"name": "odd", "task": "t", "schedule": {"__type__": "interval", "every": 60}}

INTERVALS: list[Any] = [0, -1, 1e-9, 1e308, 10**400, None, "x"]
#: Changes of a valid definition.
CHANGES: list[dict[str, Any]] = [
    *({"task": value} for value in ("\ud800", "", None, 5, ["x"], "x" * 100_000, "\x1b[31m")),
    *({"args": value} for value in (None, 5, {"a": 1}, "\ud800", ["\udcff"], [[[["x"]]]])),
    *({"kwargs": value} for value in (None, 5, [1], {"\ud800": "\udcff"})),
    *({"options": value} for value in (None, 5, [1], {"headers": 5}, {"queue": "\ud800"})),
    *({"enabled": value} for value in (None, 0, "no")),
    {"enabled": []},
    *({"schedule": value} for value in (None, 5, "x")),
    *({"schedule": {}}, {"schedule": []}, {"schedule": {"__type__": "\ud800"}}),
    *({"schedule": {"__type__": "interval", "every": value}} for value in INTERVALS),
    {"schedule": {"__type__": "crontab", "minute": "*/0"}},
    {"schedule": {"__type__": "crontab", "minute": "\ud800"}},
    {"schedule": {"__type__": "rrule", "freq": "YEARLY", "dtstart": 1e300}},
    {"schedule": {"__type__": "clocked", "clocked_time": {"__type__": "datetime", "year": 1}}},
]

LIMITS: list[Any] = [10**20, -1, 1e308, "9" * 20]
LAST_RUNS: list[Any] = ["[" * 100_000 + "]" * 100_000, 1e308, {"year": 0}]
#: UNIX seconds at the limits of the years 1 to 9999, and beyond.
INSTANTS: list[Any] = [-62135596800, 253402300799, 253402300800, -1e308, 1e308, 10**400]
INSTANTS += [float("nan"), float("inf")]
NESTED = "[" * 100_000 + "]" * 100_000

#: Stored data that other programs may write: fields of the entry ``odd``.
ODD: list[dict[str, Any]] = [
    *({field: NESTED} for field in ("definition", "meta", "policy", "beat_state", "inbox")),
    *({field: NESTED} for field in ("history", "results", "waits")),
    *({"policy": json.dumps({"max_runs": value})} for value in LIMITS),
    *(
        {
            "definition": json.dumps({**PLAIN, "enabled": False}),
            "beat_state": json.dumps({"pause": [since, note, "\ud800"]}),
        }
        for since in (*INSTANTS, "x", None)
        for note in ("\ud800\udcff", ["x"])
    ),
    *({"meta": json.dumps({"last_run_at": value})} for value in LAST_RUNS),
    *(
        {"history": json.dumps([f"{first} {second} sent \udcff"])}
        for first in (0, "nan", 1e308, -62135596800, 253402300799)
        for second in (1, "+inf")
    ),
    *({"beat_state": json.dumps({"id": value})} for value in (5, None, "\ud800", "x" * 10_000)),
    *(
        {"beat_state": json.dumps({part: value})}
        for at in INSTANTS
        for part, value in (
            ("at", at),
            ("due", at),
            ("hold", ["scheduled", at, "x", at, "", 0]),
            ("running", ["x", at]),
            ("failing", [at, 3, "OSError: \ud800", at, at, ""]),
            ("waiting", [["x", at]]),
            ("quarantine", [at, "\ud800"]),
            ("results", [at, 10**400, at, [5]]),
        )
    ),
    *({"inbox": json.dumps([["trigger", "x", at]])} for at in INSTANTS),
    *({"inbox": json.dumps([["end", "x", "failed", at, at, "\ud800", at]])} for at in INSTANTS),
    *({"results": json.dumps([["x", "failed", at, at, "\ud800", at]])} for at in INSTANTS),
    *({"definition": json.dumps({**PLAIN, **change})} for change in CHANGES),
]


@pytest.mark.parametrize("score", [4e9, -1])
def test_odd_stored_data_is_shown(
    browser: Browser, redis_client: redis.Redis, score: float
) -> None:
    """Each entry has its own page, which names the entry if the page fails."""
    names = [f"odd-{number}" for number in range(len(ODD))]
    for name, fields in zip(names, ODD, strict=True):
        stored = {"definition": json.dumps(PLAIN), **fields}
        texts: dict[Any, Any] = {field: as_bytes(text) for field, text in stored.items()}
        redis_client.hset(f"redbeat:{name}", mapping=texts)
        redis_client.hset(".redbeat::quarantine", f"redbeat:{name}", NESTED)
        redis_client.zadd("redbeat::schedule", {f"redbeat:{name}": score})
    beats: dict[Any, Any] = {"a": "inf", "b": 4e11, "c": -1e300, b"\xff": 1}
    redis_client.zadd(".redbeat::beats", beats)
    browser.client.set_cookie("redbeat_zone", "Pacific/Kiritimati")
    for name in names:
        assert name in browser.get(f"/entry?name={name}")
        browser.get(f"/entry/delete?name={name}")
    lists = "/?per=200", "/?per=200&sort=-last", "/?per=200&task=t"
    for path in (*lists, "/timeline", "/beats"):
        browser.get(path)


@pytest.mark.long
@pytest.mark.parametrize("text", ["x" * 500, "*a" * 250, "?" * 500, "[a-z]*" * 83, "ß" * 500])
def test_a_long_search_among_many_names_is_quick(
    browser: Browser, redis_client: redis.Redis, text: str
) -> None:
    for first in range(0, 100_000, 10_000):
        scores = {f"redbeat:{number}{'a' * 60}": number for number in range(first, first + 10_000)}
        redis_client.zadd("redbeat::schedule", scores)
    started = time.monotonic()
    browser.get("/", q=text)
    assert time.monotonic() - started < 10
