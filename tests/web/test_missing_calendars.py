"""Tests that no page fails if a calendar of an entry is missing or unreadable."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery
from celery.schedules import crontab

from redbeat import Calendar, RedBeatSchedulerEntry, Schedule
from tests.cli.commands import run_command
from tests.conftest import Make
from tests.samples import long, rows_in
from tests.stored import put_history
from tests.web.conftest import Browser

UTC = timezone.utc
NOW = datetime.now(UTC)
CALENDARS = ".redbeat::calendars"

#: Policies whose state and times depend on the calendar.
POLICIES: dict[str, dict[str, Any]] = {
    "plain": {},
    "spread": {"spread": 600},
    "spread, ended": {"spread": 600, "end_time": NOW - timedelta(hours=1)},
    "jitter": {"jitter": 60},
    "moved": {"on_excluded": "next", "spread": 600, "schedule": crontab(minute=0)},
    "ended": {"end_time": NOW - timedelta(hours=1)},
    "later": {"start_time": NOW + timedelta(days=1), "spread": 5},
    "limited": {"max_runs": 3, "misfire_grace_time": 5},
    "used up": {"max_runs": 1, "total_run_count": 1, "spread": 5},
    "paused": {"enabled": False, "spread": 5},
}

#: What becomes of the calendar after the entry was saved; None if the calendar is deleted.
STORED = {"missing": None, "unreadable": "[1", "nested": "[" * 100_000, "wrong": '{"days": 5}'}
EVERY = "every day"
STORED[EVERY] = '{"days": [], "rules": ["RRULE:FREQ=DAILY"], "zone": null}'

PAGES = ("/", "/timeline", "/beats", "/?sort=name", "/?state=finished", "/api/entries")
ENTRY_PAGES = (
    *("/entry", "/entry/edit", "/entry/simulate", "/entry/delete", "/api/entry"),
    *("/api/entry/history", "/entry/simulate?kind=every&rule=60"),
)
FORMS = ("/entry/preview", "/entry/edit", "/entry/pause", "/entry/resume", "/entry/trigger")


def answers(browser: Browser) -> dict[str, int]:
    """Return the status codes of all pages and forms."""
    found = {path: browser.ask(path).status_code for path in (*PAGES, "/api/upcoming")}
    for page in ENTRY_PAGES:
        path, _, query = page.partition("?")
        fields = dict(pair.split("=") for pair in query.split("&") if pair)
        found[page] = browser.ask(path, name="a", **fields).status_code
    form = {"kind": "every", "rule": "90", "exclude": "de"}
    found["/new/preview"] = browser.send("/new/preview", **form).status_code
    found["/new"] = browser.send("/new", **form, task="t").status_code
    for path in FORMS:
        found[f"POST {path}"] = browser.send(path, "a", **form).status_code
    for action in ("pause", "resume", "trigger"):
        fields = {"action": action, "entry": "a", "confirmed": "1"}
        found[f"/selected {action}"] = browser.send("/selected", **fields).status_code
        code = browser.client.post(f"/api/entry/{action}?name=a", json={}).status_code
        found[f"POST /api/entry/{action}"] = code
    for method in (browser.client.put, browser.client.patch):
        answer = method("/api/entry?name=a", json={"task": "t", "every": 90, "exclude": ["de"]})
        found[f"{answer.request.method} /api/entry"] = answer.status_code
    return found


CASES = [(policy, state) for policy in POLICIES for state in STORED if state != EVERY]
#: These take long, because each page computes until the bound of a computation.
COSTLY = [("plain", EVERY), *(long(policy, EVERY) for policy in POLICIES if policy != "plain")]


@pytest.mark.parametrize(("policy", "state"), [*rows_in(13, CASES), *COSTLY])
def test_no_page_fails(
    browser: Browser, make: Make, app: Celery, schedule: Schedule, policy: str, state: str
) -> None:
    schedule.save_calendar(Calendar("de", [NOW.date()]))
    make("b").save()
    fields = {"last_run_at": NOW - timedelta(hours=2), **POLICIES[policy]}
    make("a", exclude=["de"], **fields).save()
    client = app.redbeat_redis
    stored = STORED[state]
    seconds = NOW.timestamp() - 3600
    put_history(client, "redbeat:a", [f"{seconds:.0f} +5"])
    if stored is None:
        client.hdel(CALENDARS, "de")
    else:
        client.hset(CALENDARS, "de", stored)
    assert {path: code for path, code in answers(browser).items() if code >= 500} == {}
    listing = browser.get("/")
    assert ">a</a>" in listing
    assert ">b</a>" in listing
    for command in (["list"], ["show", "a"], ["history", "a"], ["upcoming"], ["doctor"]):
        run_command(app, *command)
        run_command(app, *command, "--json")


@pytest.mark.parametrize("stored", ["missing", "unreadable"])
def test_an_entry_without_its_calendar_is_resumed(
    make: Make, app: Celery, schedule: Schedule, stored: str
) -> None:
    schedule.save_calendar(Calendar("de", [NOW.date()]))
    entry = make("a", exclude=["de"], enabled=False).save()
    if stored == "missing":
        app.redbeat_redis.hdel(CALENDARS, "de")
    else:
        app.redbeat_redis.hset(CALENDARS, "de", "[1")
    entry.resume()
    assert schedule["a"].enabled


@pytest.mark.parametrize("action", ["pause", "resume", "trigger"])
@pytest.mark.parametrize("prefix", ["/entry", "/api/entry"])
def test_an_entry_that_is_deleted_during_a_request(
    browser: Browser, make: Make, app: Celery, monkeypatch: Any, action: str, prefix: str
) -> None:
    entry = make("a").save()
    method = getattr(RedBeatSchedulerEntry, action)

    def deleted_before(self: RedBeatSchedulerEntry, *args: Any) -> Any:
        app.redbeat_redis.delete(entry.key)
        return method(self, *args)

    monkeypatch.setattr(RedBeatSchedulerEntry, action, deleted_before)
    if prefix == "/api/entry":
        answer = browser.client.post(f"{prefix}/{action}?name=a", json={})
    else:
        answer = browser.send(f"{prefix}/{action}", "a")
    assert answer.status_code == 404
