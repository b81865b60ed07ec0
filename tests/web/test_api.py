"""Tests of the JSON API, its OpenAPI document and the health checks."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from html import unescape
from typing import Any, get_args

import pytest
import redis
from celery import Celery
from celery.schedules import crontab, solar
from jsonschema import FormatChecker
from openapi_schema_validator import OAS31Validator
from openapi_spec_validator import validate

from redbeat import Calendar, RedBeatSchedulerEntry, clocked, rrule
from redbeat.entries.history import RunState
from redbeat.entries.policy import FIELDS
from redbeat.entries.status import LAST_RESULTS, STATES
from redbeat.management import find, forecast
from redbeat.management.schedule import Schedule
from redbeat.metrics.problems import KINDS
from redbeat.presentation.rule_text import RULES
from redbeat.transfer import entry_file
from redbeat.transfer.entry_file import TASK
from redbeat.web.api import DEFAULT_ITEMS, MAX_ITEMS
from redbeat.web.auth import Access
from redbeat.web.site import create_app
from tests.cli.commands import run_command
from tests.cli.test_json import (
    COMING,
    DONE,
    ENTRY,
    LISTED,
    PAST,
    SHOWN,
    STATUS,
    is_time,
)
from tests.conftest import Make
from tests.samples import one_in
from tests.stored import put_failing, put_history
from tests.web.conftest import Browser, Open
from tests.workers import reporting, run_task

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


QUEUED = {"options": {"priority": 5, "queue": "old"}}


@pytest.mark.parametrize(
    ("method", "body", "options"),
    [
        ("PUT", {"queue": "a"}, {"queue": "a"}),
        ("PUT", {"options": None, "queue": "a"}, {"queue": "a"}),
        ("PUT", {"options": {"priority": 9}, "queue": "a"}, {"priority": 9, "queue": "a"}),
        ("PUT", {"options": {"priority": 9}}, {"priority": 9}),
        ("PUT", QUEUED, QUEUED["options"]),
        ("PUT", {**QUEUED, "queue": "a"}, {"priority": 5, "queue": "a"}),
        ("PUT", {**QUEUED, "queue": None}, {"priority": 5}),
        ("PUT", {}, {}),
        ("PATCH", {}, QUEUED["options"]),
        ("PATCH", {"queue": "a"}, {"priority": 5, "queue": "a"}),
        ("PATCH", {"queue": None}, {"priority": 5}),
        ("PATCH", {"options": None}, {}),
        ("PATCH", {"options": None, "queue": "a"}, {"queue": "a"}),
        ("PATCH", {"options": {"priority": 9}, "queue": "a"}, {"priority": 9, "queue": "a"}),
        ("PATCH", {**QUEUED, "queue": None}, {"priority": 5}),
    ],
)
def test_the_queue_is_one_of_the_options(
    browser: Browser, make: Make, method: str, body: dict[str, Any], options: dict[str, Any]
) -> None:
    make("old", **QUEUED)
    sent = {**FIELDS_SENT, **body} if method == "PUT" else body
    assert call(browser, method, "/entry", sent, name="old")["options"] == options
    assert call(browser, method, "/entry", sent, name="old")["options"] == options
    if method == "PUT":
        assert call(browser, "PUT", "/entry", sent, 201, name="new")["options"] == options


def test_lists_have_pages_and_filters(browser: Browser, make: Make) -> None:
    for name in ("a1", "a2", "b"):
        make(name)
    first = call(browser, "GET", "/entries", q="a", limit="1", sort="name")
    assert [each["name"] for each in first["entries"]] == ["a1"]
    rest = call(browser, "GET", "/entries", q="a", limit="1", sort="name", after=first["after"])
    assert [each["name"] for each in rest["entries"]] == ["a2"]
    assert rest["after"] is None
    assert call(browser, "GET", "/entries", last_result="failed")["entries"] == []
    error = call(browser, "GET", "/entries", code=422, last_result="bad")["error"]
    assert error["field"] == "last_result"
    runs = call(browser, "GET", "/upcoming", limit="2")["runs"]
    assert [set(run) for run in runs] == [{"due_at", "name"}] * 2
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
        ("PUT", {"task": "t", "cron": "0 9 * * Mon#1"}, 422, "cron", "'Mon#1' must be"),
        ("PUT", {**FIELDS_SENT, "max_runs": 0}, 422, "max_runs", "above 0"),
        ("PUT", {**FIELDS_SENT, "start_time": "0001-01-01"}, 422, "start_time", "years 1 and"),
        ("PUT", {**FIELDS_SENT, "end_time": "9999-12-31T23:59-01:00"}, 422, "end_time", "years 1"),
        ("PUT", {**FIELDS_SENT, "overlap": "x"}, 422, "overlap", "must be one of"),
        ("PUT", {**FIELDS_SENT, "jiter": 1}, 422, "jiter", "did you mean jitter?"),
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


def problems(document: dict[str, Any], schema: dict[str, Any], value: Any) -> list[str]:
    """Return why a value does not fit a schema of the document; times must be in UTC."""
    checker = FormatChecker(())
    checker.checks("date-time", ValueError)(lambda it: it is None or is_time(it))
    root = {**schema, "components": document["components"]}
    errors = OAS31Validator(root, format_checker=checker).iter_errors(value)
    return [f"{error.json_path}: {error.message}" for error in errors]


@pytest.fixture
def answers(
    browser: Browser,
    app: Celery,
    make: Make,
    schedule: Schedule,
    redis_client: redis.Redis,
    broken: Callable[[str, str], None],
) -> dict[tuple[str, str], list[Any]]:
    """Return real answers of each operation, from a schedule with all kinds of values."""
    app.redbeat_tracks_runs = True
    now = datetime.now(timezone.utc)
    ran = now - timedelta(minutes=1)
    second = ran.timestamp()
    schedule.save_calendar(Calendar("days", ["2036-01-01", ["2036-02-01", "2036-02-03"]]))
    entry = make(
        "full",
        crontab(minute="0"),
        args=[1, "x"],
        options={"queue": "q"},
        end_time=now + timedelta(days=900),
        expect_within=0.001,
        jitter=2.5,
        overlap="skip",
        exclude=["days"],
        description="d",
    )
    entry.backfill(now - timedelta(hours=9.5), now - timedelta(hours=1))
    make("often", 0.02)
    make("yearly", rrule("YEARLY", dtstart=now), max_runs=3)
    make("dawn", solar("sunrise", 48.86, 2.35))
    make("asleep").pause("why", "Ann")
    make("fails", clocked(ran))
    put_failing(redis_client, "redbeat:fails", 2, second, "TypeError: odd")
    redis_client.zadd("redbeat::schedule", {"redbeat:fails": second + 90})
    lines = [f"{second:.6f} +0 {run}" for run in ("sent id", "skipped")]
    put_history(redis_client, "redbeat:full", lines)
    with reporting(app):
        headers = {"periodic_task_name": "full", "scheduled_at": ran.isoformat()}
        run_task(app, "id", headers, "FAILURE", ValueError("no"))
    broken("bad", "{")
    redis_client.set("redbeat::lock", "redbeat3:web-1:4711:1700000000:" + "0" * 32)

    def get(path: str, **query: Any) -> Any:
        return call(browser, "GET", path, **query)

    names = ("full", "often", "yearly", "dawn", "asleep", "fails", "bad")
    found = {
        ("/status", "get"): [get("/status")],
        ("/doctor", "get"): [get("/doctor"), get("/doctor", limit="1")],
        ("/upcoming", "get"): [get("/upcoming")],
        ("/timeline", "get"): [get("/timeline"), get("/timeline", pattern="[!o]*", span="2h")],
        ("/calendars", "get"): [get("/calendars")],
        ("/entries", "get"): [get("/entries"), get("/entries", limit="2", sort="name")],
        ("/entry", "get"): [get("/entry", name=name) for name in names],
        ("/entry/history", "get"): [get("/entry/history", name="full")],
        ("/openapi.json", "get"): [get("/openapi.json")],
        ("/entry", "put"): [call(browser, "PUT", "/entry", FIELDS_SENT, 201, name="new")],
        ("/entry", "patch"): [call(browser, "PATCH", "/entry", {"jitter": 1}, name="new")],
    }
    for action, code in (("pause", 200), ("resume", 200), ("trigger", 202)):
        answer = call(browser, "POST", f"/entry/{action}", code=code, name="new")
        found[f"/entry/{action}", "post"] = [answer]
    call(browser, "DELETE", "/entry", code=204, name="new")
    return found


def test_real_answers_fit_their_schemas(
    browser: Browser, answers: dict[tuple[str, str], list[Any]]
) -> None:
    document = call(browser, "GET", "/openapi.json")
    operations = {
        (path, method): operation
        for path, each in document["paths"].items()
        for method, operation in each.items()
    }
    assert set(operations) - set(answers) == {("/entry", "delete")}
    for (path, method), values in answers.items():
        for code, response in operations[path, method]["responses"].items():
            if code == "default":
                continue
            schema = response["content"]["application/json"]["schema"]
            for value in values:
                assert problems(document, schema, value) == [], f"openapi.json: {method} {path}"
                if path != "/openapi.json":
                    assert problems(document, schema, {**value, "other": 1}), path
    error = call(browser, "GET", "/entry", code=404, name="nobody")
    assert problems(document, {"$ref": "#/components/schemas/Error"}, error) == []


def test_the_answers_have_all_kinds_of_values(answers: dict[tuple[str, str], list[Any]]) -> None:
    entries = {each["name"]: each for each in answers["/entry", "get"]}
    full = entries["full"]
    assert full["overdue"]["expect_within"] == 0.001
    assert full["history"][0]["result"]["error"] == "ValueError: no"
    assert len(full["backfills"]) == 1
    assert full["policy"]["exclude"] == ["days"]
    assert entries["asleep"]["note"]
    assert entries["fails"]["failing"]["attempts"] == 2
    assert "TypeError: odd" in entries["fails"]["problem"]
    (listed,) = (each for each in answers["/entries", "get"][0]["entries"] if each["failing"])
    assert listed["problem"] == entries["fails"]["problem"]
    assert entries["bad"]["state"] == "quarantined"
    assert entries["bad"]["stored"]["definition"]
    (status,) = answers["/status", "get"]
    assert status["leader"]["host"] == "web-1"
    assert status["overdue"]
    doctor, first = answers["/doctor", "get"]
    assert {"quarantined", "failing", "overdue"} <= {each["kind"] for each in doctor["findings"]}
    assert (doctor["complete"], first["complete"], len(first["findings"])) == (True, False, 1)
    many, few = answers["/timeline", "get"]
    assert {each["runs"] for each in many["entries"]} == {None}
    assert [each["name"] for each in few["entries"]]
    assert all(len(each["runs"]) == each["count"] for each in few["entries"])


def test_the_schemas_have_the_documented_fields(browser: Browser) -> None:
    """The tables in ``docs/json.rst``, which the output of the commands is checked with."""
    schemas = call(browser, "GET", "/openapi.json")["components"]["schemas"]
    base, run = schemas["StoredEntry"]["properties"], schemas["Run"]["properties"]
    assert {*base} == {*ENTRY, *LISTED}
    assert {*schemas["Entry"]["properties"]} == {*SHOWN}
    assert {*run, "name"} == {*PAST}
    for name, fields in {"UpcomingRun": COMING, "Status": STATUS}.items():
        assert {*schemas[name]["properties"]} == {*fields}
    assert {*schemas["Triggered"]["properties"]} == {*DONE}
    fields = schemas["Fields"]["properties"]
    assert {*fields} == {*entry_file.FIELDS}
    assert fields["jitter"]["type"] == ["number", "string", "null"]
    assert fields["overlap"]["enum"] == ["allow", "skip", "buffer_one", None]
    assert schemas["Policy"]["properties"]["overlap"]["enum"] == ["allow", "skip", "buffer_one"]


def test_the_schemas_have_the_words_of_the_code(browser: Browser) -> None:
    components = call(browser, "GET", "/openapi.json")["components"]
    words = {"State": STATES, "RunState": get_args(RunState), "Sort": find.SORTS}
    words["FindingKind"], words["LastResult"] = tuple(KINDS), LAST_RESULTS
    for name, choices in words.items():
        assert components["schemas"][name]["enum"] == [*choices]
    limit = components["parameters"]["Limit"]["schema"]
    assert (limit["maximum"], limit["default"]) == (MAX_ITEMS, DEFAULT_ITEMS)


@pytest.mark.parametrize(("span", "seconds"), [("1d", 86_400), ("1w", 604_800)])
def test_a_timeline_of_more_than_100000_runs_is_complete(
    browser: Browser, make: Make, span: str, seconds: int
) -> None:
    make("often", 0.5)
    make("hourly", 3600)
    found = call(browser, "GET", "/timeline", span=span)
    first, since = (datetime.fromisoformat(found[name]) for name in ("first_minute", "since"))
    assert found["complete"]
    assert since - first < timedelta(minutes=1)
    assert len(found["per_minute"]) in (seconds // 60, seconds // 60 + 1)
    assert max(found["per_minute"]) == 121
    assert {each["name"]: (each["count"], each["runs"]) for each in found["entries"]} == {
        "often": (2 * seconds, None),
        "hourly": (seconds // 3600, None),
    }
    assert sum(found["per_minute"]) == 2 * seconds + seconds // 3600


def test_a_timeline_of_too_many_entries_says_so(
    browser: Browser, app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = [RedBeatSchedulerEntry(f"e{n}", "t", 3600, app=app) for n in range(1200)]
    Schedule(app).save_all(entries)
    found = call(browser, "GET", "/timeline", span="2h")
    assert (found["complete"], len(found["entries"])) == (True, 1200)
    monkeypatch.setattr(forecast, "MAX_LOADED", 400)
    found = call(browser, "GET", "/timeline", span="2h")
    assert not found["complete"]
    assert len(found["entries"]) < 1200


@pytest.mark.parametrize("span", ["0", "8d", "soon", "9" * 4000])
def test_a_timeline_has_at_most_a_week(browser: Browser, span: str) -> None:
    assert call(browser, "GET", "/timeline", code=422, span=span)["error"]["field"] == "span"


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


HOSTILE_FIELDS = [
    *('"note": "\\ud800"', '"note": 5', '"jitter": NaN', '"jitter": 1e999', '"every": NaN'),
    *('"every": -Infinity', '"every": 1e308', '"max_runs": 1e999', '"args": NaN', '"a": 1'),
    *('"kwargs": {"\\ud800": 1}', '"task": "\\ud800"', '"task": null', '"queue": {}'),
    *('"cron": [1]', '"rrule": [[]]', '"start_time": 5', '"exclude": [[]]', '"enabled": 5'),
    *('"options": {"headers": 5}', '"spread": "1e400"', '"at": "9999-12-31"', '"cron": ""'),
]


@pytest.mark.parametrize("name", ["a", "new"])
@pytest.mark.parametrize("field", one_in(2, HOSTILE_FIELDS))
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


def test_a_field_is_described_once_for_options_form_and_api(app: Celery, browser: Browser) -> None:
    """A row of ``RULES`` or ``TASK``, or a field of the policy, is all that is needed."""
    fields = call(browser, "GET", "/openapi.json")["components"]["schemas"]["Fields"]["properties"]
    form, usage = (
        unescape(browser.get("/new")),
        " ".join(run_command(app, "edit", "--help").out.split()),
    )
    described = {name: about.description for name, about in RULES.items()}
    described |= {name: about.description for name, about in TASK.items()}
    described |= {name: FIELDS[name].metadata["description"] for name in entry_file.POLICY}
    for name, description in described.items():
        assert description == fields[name]["description"]
        assert description in form
        assert description in usage
