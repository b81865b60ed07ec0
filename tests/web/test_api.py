"""Tests of the JSON API, its OpenAPI document and the health checks."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery
from openapi_spec_validator import validate

from redbeat.entries.policy import FIELDS
from redbeat.schedule import Schedule
from redbeat.web.auth import Access
from redbeat.web.site import create_app
from tests.conftest import Make
from tests.web.conftest import Browser, Open

FIELDS_SENT = {"task": "proj.note", "cron": "30 2 * * *", "timezone": "Europe/Paris"}


def call(
    browser: Browser,
    method: str,
    path: str,
    body: Any = None,
    code: int = 200,
    headers: dict[str, str] | None = None,
    **query: str,
) -> Any:
    """Send JSON to the API; return the JSON of the response, None if it is empty."""
    answer = browser.client.open(
        f"/api{path}",
        method=method,
        query_string=query,
        json={} if body is None and method == "POST" else body,
        headers={**browser.headers, **(headers or {})},
    )
    assert answer.status_code == code, answer.text
    return answer.get_json() if answer.data else None


def test_an_entry_is_created_read_changed_and_deleted(browser: Browser, schedule: Schedule) -> None:
    created = call(browser, "PUT", "/entry", {**FIELDS_SENT, "jitter": "1m"}, 201, name="a/b")
    assert created["rule"] == {"cron": "30 2 * * *"}
    assert created["policy"] == {"timezone": "Europe/Paris", "jitter": 60}
    assert len(created["upcoming"]) == 5
    body = {"kwargs": {"x": 1}, "description": "Nightly", "jitter": None}
    changed = call(browser, "PATCH", "/entry", body, name="a/b")
    assert changed["kwargs"] == {"x": 1}
    assert changed["policy"] == {"timezone": "Europe/Paris", "description": "Nightly"}
    assert call(browser, "GET", "/entry", name="a/b") == changed
    replaced = call(browser, "PUT", "/entry", {"task": "proj.other", "every": 60}, name="a/b")
    assert (replaced["task"], replaced["kwargs"], replaced["policy"]) == ("proj.other", {}, {})
    assert call(browser, "DELETE", "/entry", code=204, name="a/b") is None
    assert len(schedule) == 0


def test_actions(browser: Browser, make: Make, schedule: Schedule) -> None:
    make("a")
    paused = call(browser, "POST", "/entry/pause", {"note": "closed"}, name="a")
    assert (paused["state"], paused["note"]) == ("paused", "closed")
    assert call(browser, "PATCH", "/entry", {"description": "x"}, name="a")["state"] == "paused"
    full = {"task": "proj.note", "every": "2h"}
    assert call(browser, "PUT", "/entry", full, name="a")["enabled"] is False
    assert call(browser, "POST", "/entry/resume", name="a")["state"] == "scheduled"
    assert call(browser, "POST", "/entry/trigger", code=202, name="a")["task_id"]
    assert call(browser, "GET", "/entry/history", name="a") == {"history": []}
    assert schedule["a"].enabled


def test_lists_have_pages_and_filters(browser: Browser, make: Make) -> None:
    for name in ("a1", "a2", "b"):
        make(name)
    first = call(browser, "GET", "/entries", q="a", limit="1", sort="name")
    assert [each["name"] for each in first["entries"]] == ["a1"]
    rest = call(browser, "GET", "/entries", q="a", limit="1", sort="name", after=first["after"])
    assert [each["name"] for each in rest["entries"]] == ["a2"]
    assert rest["after"] is None
    runs = call(browser, "GET", "/upcoming", limit="2")["runs"]
    assert [set(run) for run in runs] == [{"name", "at"}] * 2
    assert call(browser, "GET", "/status")["total"] == 3


def test_a_concurrent_change_is_refused(browser: Browser, make: Make, schedule: Schedule) -> None:
    make("a")
    etag = browser.ask("/api/entry", name="a").headers["ETag"]
    make("a", 77)
    headers = {"If-Match": etag}
    for method, body in (("PATCH", {"every": 5}), ("DELETE", None)):
        call(browser, method, "/entry", body, 412, headers, name="a")
    assert schedule["a"].schedule.run_every.total_seconds() == 77
    headers = {"If-Match": browser.ask("/api/entry", name="a").headers["ETag"]}
    call(browser, "PATCH", "/entry", {"every": 5}, 200, headers, name="a")
    new = {"If-None-Match": "*"}
    call(browser, "PUT", "/entry", FIELDS_SENT, 412, new, name="a")


@pytest.mark.parametrize(
    ("method", "body", "code", "field", "message"),
    [
        ("PUT", {"every": 5}, 422, "task", "is missing"),
        ("PUT", {"task": "t"}, 422, "schedule", "give one of"),
        ("PUT", {**FIELDS_SENT, "max_runs": 0}, 422, "max_runs", "above 0"),
        ("PUT", {**FIELDS_SENT, "overlap": "x"}, 422, "overlap", "must be one of"),
        ("PUT", {**FIELDS_SENT, "jiter": 1}, 422, "jiter", "did you mean 'jitter'?"),
        ("PUT", {**FIELDS_SENT, "enabled": "no"}, 422, "enabled", "true or false"),
        ("PUT", {**FIELDS_SENT, "args": {}}, 422, "args", "must be a list"),
        ("PUT", [1], 400, None, "must be a JSON object"),
        ("PATCH", {"every": 5}, 404, None, "There is no entry"),
        ("DELETE", None, 404, None, "There is no entry"),
        ("GET", None, 404, None, "There is no entry"),
        ("POST", {}, 405, None, "method"),
    ],
)
def test_errors_name_the_field(
    browser: Browser,
    schedule: Schedule,
    method: str,
    body: Any,
    code: int,
    field: str | None,
    message: str,
) -> None:
    error = call(browser, method, "/entry", body, code, name="new")["error"]
    assert error["field"] == field
    assert message in error["message"]
    assert len(schedule) == 0


def test_other_errors_are_json(browser: Browser) -> None:
    assert call(browser, "GET", "/nothing", code=404)["error"]["message"]
    assert "limit" in call(browser, "GET", "/entries", code=400, limit="0")["error"]["message"]
    assert "sort" in call(browser, "GET", "/entries", code=422, sort="odd")["error"]["field"]


def test_the_api_needs_the_credentials_of_the_page(open_page: Open, make: Make) -> None:
    make("a")
    secret = "b1946ac92492d2347c6235b4"
    stranger = open_page(tokens=(secret,))
    for method in ("GET", "PUT", "PATCH", "DELETE"):
        assert call(stranger, method, "/entry", {}, 401, name="a")["error"]["message"]
    known = open_page({"Authorization": f"Bearer {secret}"}, tokens=(secret,))
    assert call(known, "GET", "/entry", name="a")["name"] == "a"
    assert stranger.ask("/healthz").status_code == stranger.ask("/readyz").status_code == 200


def test_a_read_only_api_changes_nothing(open_page: Open, make: Make) -> None:
    before = make("a").texts()
    reader = open_page(read_only=True)
    for method in ("PUT", "PATCH", "DELETE"):
        call(reader, method, "/entry", FIELDS_SENT, 403, name="a")
    call(reader, "POST", "/entry/trigger", {}, 403, name="a")
    assert make("a").texts() == before


def test_a_page_of_another_site_cannot_use_the_api(browser: Browser, make: Make) -> None:
    make("a")
    form = browser.client.post("/api/entry/pause?name=a", data={"note": "x"})
    assert form.status_code == 415
    headers = {"Sec-Fetch-Site": "cross-site"}
    call(browser, "DELETE", "/entry", None, 403, headers, name="a")
    call(browser, "POST", "/entry/pause", {}, 403, headers, name="a")


def test_the_document_is_valid_and_has_every_url(browser: Browser) -> None:
    document = call(browser, "GET", "/openapi.json")
    validate(document)
    described = {
        (path, method.upper()) for path, each in document["paths"].items() for method in each
    }
    rules = browser.client.application.url_map.iter_rules()
    served = {
        (rule.rule.removeprefix("/api"), method)
        for rule in rules
        if rule.rule.startswith("/api/")
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
    }
    assert described == served
    fields = document["components"]["schemas"]["Fields"]["properties"]
    assert set(FIELDS) - set(fields) == {"managed_by"}


def test_a_listed_entry_is_like_a_shown_one(browser: Browser, make: Make) -> None:
    make("a", description="x")
    listed = call(browser, "GET", "/entries")["entries"][0]
    shown = call(browser, "GET", "/entry", name="a")
    assert {name: shown[name] for name in listed} == listed


def test_health_checks(browser: Browser) -> None:
    assert browser.get("/healthz") == "the dashboard is running\n"
    assert browser.get("/readyz") == "Redis answers\n"
    away = Celery("away", set_as_current=False)
    away.conf.update(broker_url="memory://", redbeat_redis_url="redis://127.0.0.1:1/0")
    site = create_app(Schedule(away), Access()).test_client()
    assert site.get("/healthz").status_code == 200
    answer = site.get("/readyz")
    assert (answer.status_code, "Redis does not answer" in answer.text) == (503, True)
    error = site.get("/api/entries")
    assert (error.status_code, error.get_json()["error"]["field"]) == (503, None)


DEEP = b"[" * 100_000

#: Bodies that are no JSON object, or nested too deep.
BODIES = {
    "brackets": DEEP,
    "closed brackets": DEEP + b"]" * 100_000,
    "objects": b'{"a":' * 100_000,
    "a deep field": b'{"task": "t", "every": 60, "args": %s%s}' % (b"[" * 900, b"]" * 900),
    "a list": b"[]",
    "a number of 5000 digits": b"9" * 5000,
    "not JSON": b"{",
    "not UTF-8": b'{"note": "\xff"}',
    "UTF-16": '{"note": "a"}'.encode("utf-16"),
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
@pytest.mark.parametrize(
    ("method", "path"), [("PUT", "/entry"), ("PATCH", "/entry"), ("POST", "/entry/pause")]
)
def test_a_body_that_is_no_object(
    browser: Browser, make: Make, method: str, path: str, body: bytes
) -> None:
    make("a").save()
    answer = browser.client.open(
        f"/api{path}?name=a", method=method, data=body, content_type="application/json"
    )
    assert answer.status_code == 400, answer.text
    assert answer.get_json()["error"]["message"]


RULE = '"every": 60, '


@pytest.mark.parametrize("name", ["a", "new"])
@pytest.mark.parametrize(
    "field",
    [
        *('"note": "\\ud800"', '"note": 5', '"jitter": NaN', '"jitter": 1e999', '"every": NaN'),
        *('"every": -Infinity', '"every": 1e308', '"max_runs": 1e999', '"args": NaN', '"a": 1'),
        *('"kwargs": {"\\ud800": 1}', '"task": "\\ud800"', '"task": null', '"queue": {}'),
        *('"cron": [1]', '"rrule": [[]]', '"start_time": 5', '"exclude": [[]]', '"enabled": 5'),
        *('"options": {"headers": 5}', '"spread": "1e400"', '"at": "9999-12-31"', '"cron": ""'),
    ],
)
def test_a_hostile_field_is_refused_or_stored(
    browser: Browser, make: Make, schedule: Schedule, name: str, field: str
) -> None:
    make("a").save()
    ruled = field.startswith(('"every"', '"cron"', '"rrule"', '"at"'))
    body = f'{{"task": "t", {"" if ruled else RULE}{field}}}'
    for method, path in (("PUT", "/entry"), ("PATCH", "/entry"), ("POST", "/entry/pause")):
        answer = browser.client.open(
            f"/api{path}?name={name}", method=method, data=body, content_type="application/json"
        )
        assert answer.status_code < 500, answer.text
        for page in ("/", f"/entry?name={name}", f"/api/entry?name={name}"):
            assert browser.ask(page).status_code < 500
    assert [each.problem for each in schedule.records()] == [None] * len(schedule)
