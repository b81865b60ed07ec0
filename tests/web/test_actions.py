"""Tests of the actions of the dashboard."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from html import unescape
from urllib.parse import unquote

import pytest
import redis
from celery.schedules import crontab

from redbeat import RedBeatSchedulerEntry
from redbeat.management.schedule import Schedule
from tests.conftest import Make
from tests.stored import is_triggered
from tests.web.conftest import Browser, Open

ACTIONS = ["/entry/pause", "/entry/resume", "/entry/trigger", "/entry/edit", "/entry/delete"]
ACTIONS += ["/quarantine/retry", "/entry/preview"]


#: Actions whose URL shows a form if a browser opens it.
FORMS = ("/entry/delete", "/entry/edit")


def form_of(page: str) -> dict[str, str]:
    """Return the hidden fields of the form that edits a rule."""
    found = re.search(r'name="seen" value="([^"]*)"', page)
    assert found is not None
    return {"seen": unescape(found[1])}


def rule_in(page: str) -> str:
    """Return the rule in the form of a page."""
    return unescape(re.split(r'<textarea id="rule-text"[^>]*>\n?([^<]*)</textarea>', page)[1])


def edited(browser: Browser, name: str, kind: str, rule: str, timezone: str = "") -> str:
    """Change a rule with the form of its page; return the next page."""
    seen = form_of(browser.get("/entry/edit", name=name))
    return browser.done("/entry/edit", name, kind=kind, rule=rule, timezone=timezone, **seen)


def test_pause_and_resume(
    browser: Browser, make: Make, schedule: Schedule, caplog: pytest.LogCaptureFixture
) -> None:
    make("orders")
    with caplog.at_level(logging.INFO, "redbeat.web"):
        page = browser.done("/entry/pause", "orders", note="shop is closed")
    assert "Paused." in page
    status = schedule["orders"].status
    assert (status.state, status.note) == ("paused", "shop is closed")
    assert "paused ('shop is closed') 'orders', from 127.0.0.1" in caplog.text
    assert "Resumed." in browser.done("/entry/resume", "orders")
    assert schedule["orders"].status.state == "scheduled"


def test_a_pause_names_its_user(
    open_page: Open, make: Make, schedule: Schedule, caplog: pytest.LogCaptureFixture
) -> None:
    make("orders")
    browser = open_page({"Authorization": "Basic YW5uOnNlY3JldA=="}, users=(("ann", "secret"),))
    with caplog.at_level(logging.INFO, "redbeat.web"):
        page = browser.done("/entry/pause", "orders")
    assert "by ann" in page
    assert (schedule["orders"].status.reason or "").endswith("by ann")
    assert "ann: paused 'orders'" in caplog.text
    assert "secret" not in caplog.text + page


def test_trigger(browser: Browser, make: Make, redis_client: redis.Redis) -> None:
    make("orders")
    page = browser.done("/entry/trigger", "orders")
    assert is_triggered(redis_client, "redbeat:orders")
    assert "Triggered. The task id is" in page


def test_too_many_triggers_are_refused(browser: Browser, make: Make) -> None:
    entry = make("orders")
    for _ in range(100):
        entry.trigger()
    assert "are waiting" in browser.done("/entry/trigger", "orders")


def test_delete_needs_a_confirmation(browser: Browser, make: Make, schedule: Schedule) -> None:
    make("orders")
    assert "Delete orders?" in browser.get("/entry/delete", name="orders")
    assert "orders" in schedule
    assert "Deleted orders." in browser.done("/entry/delete", "orders")
    assert "orders" not in schedule


@pytest.mark.parametrize(
    ("kind", "rule", "timezone"),
    [
        ("every", "90", ""),
        ("every", "5m", ""),
        ("cron", "*/5 8-18 * * mon-fri", "America/New_York"),
        ("rrule", "RRULE:FREQ=MONTHLY;BYMONTHDAY=-1;BYHOUR=9;BYMINUTE=0", "Europe/Paris"),
        ("at", "2036-01-01T09:00", "Asia/Tokyo"),
        ("solar", "sunset,48.86,2.35", ""),
    ],
)
def test_every_kind_of_rule_can_be_saved(
    browser: Browser, make: Make, schedule: Schedule, kind: str, rule: str, timezone: str
) -> None:
    make("orders", crontab(minute="1"), timezone="Europe/Berlin", kwargs={"a": 1})
    before = schedule["orders"]
    page = edited(browser, "orders", kind, rule, timezone)
    assert "The entry was changed" in page
    entry = schedule["orders"]
    assert entry.schedule != before.schedule
    assert entry.kwargs == {"a": 1}
    page = browser.get("/entry/edit", name="orders")
    assert f"<option selected>{kind}</option>" in page
    # The form shows the saved rule in a form that it accepts: saving again changes nothing.
    typed = rule_in(page)
    zone = timezone if kind == "cron" else ""
    assert "Nothing was changed" in edited(browser, "orders", kind, typed, zone)
    assert schedule["orders"].texts() == entry.texts()


def test_the_preview_writes_nothing(browser: Browser, make: Make, schedule: Schedule) -> None:
    make("orders")
    fields = {"kind": "cron", "rule": "30 9 * * *", "timezone": "Europe/Paris"}
    answer = browser.send("/entry/preview", "orders", **fields)
    preview = answer.text.split('id="preview"')[1]
    assert preview.count("<li>") == 10
    assert ":30:00" in preview
    assert schedule["orders"].schedule.run_every.total_seconds() == 3600


def test_another_rule_restarts_a_finished_entry(
    browser: Browser, make: Make, schedule: Schedule
) -> None:
    """The preview shows one run if the schedule changed, and no run otherwise."""
    ran = datetime.now(timezone.utc) - timedelta(days=2)
    make("orders", max_runs=1, total_run_count=1, last_run_at=ran)
    for rule, runs in (("3600", 0), ("7200", 1)):
        fields = {"kind": "every", "rule": rule, "timezone": ""}
        page = browser.send("/entry/preview", "orders", **fields).text
        assert page.split('id="preview"')[1].count("<li>") == runs
        edited(browser, "orders", "every", rule)
        assert schedule["orders"].runs_left == runs
    (after,) = schedule["orders"].upcoming()
    assert abs(after - datetime.now(timezone.utc) - timedelta(hours=2)) < timedelta(minutes=1)


def test_a_change_by_another_user_is_not_lost(
    browser: Browser, make: Make, schedule: Schedule
) -> None:
    make("orders")
    seen = form_of(browser.get("/entry/edit", name="orders"))
    make("orders", 77)
    fields = {"kind": "every", "rule": "5", "timezone": ""}
    answer = browser.send("/entry/edit", "orders", **seen, **fields)
    assert answer.status_code == 409
    assert "Somebody else has changed this entry" in answer.text
    assert schedule["orders"].schedule.run_every.total_seconds() == 77
    again = browser.done("/entry/edit", "orders", **form_of(answer.text), **fields)
    assert "The entry was changed" in again
    assert schedule["orders"].schedule.run_every.total_seconds() == 5


def test_a_change_during_the_save_is_not_lost(
    browser: Browser, make: Make, schedule: Schedule, monkeypatch: pytest.MonkeyPatch
) -> None:
    make("orders")
    seen = form_of(browser.get("/entry/edit", name="orders"))
    check = RedBeatSchedulerEntry.check_allowed

    def change_meanwhile(_entry: RedBeatSchedulerEntry) -> None:
        monkeypatch.setattr(RedBeatSchedulerEntry, "check_allowed", check)
        make("orders", 77)

    monkeypatch.setattr(RedBeatSchedulerEntry, "check_allowed", change_meanwhile)
    answer = browser.post("/entry/edit", "orders", **seen, kind="every", rule="5", **token(browser))
    assert answer.status_code == 409
    assert schedule["orders"].schedule.run_every.total_seconds() == 77


def token(browser: Browser) -> dict[str, str]:
    """Return the form field with the CSRF token."""
    found = re.search(r'name="csrf_token" value="([^"]+)"', browser.get("/entry", name="orders"))
    assert found is not None
    return {"csrf_token": found[1]}


def test_a_quarantined_entry_can_be_retried(
    browser: Browser,
    schedule: Schedule,
    broken: Callable[[str, str], None],
    redis_client: redis.Redis,
) -> None:
    broken("bad", "{")
    assert "will read the entry again" in browser.done("/quarantine/retry", "bad")
    assert schedule.quarantine() == {}
    assert redis_client.zcount("redbeat::schedule", 0, "+inf") == 1


def test_an_unreadable_entry_cannot_be_paused(
    browser: Browser, broken: Callable[[str, str], None]
) -> None:
    broken("bad", "{")
    answer = browser.send("/entry/pause", "bad")
    assert answer.status_code == 409
    assert "cannot be read" in answer.text


@pytest.mark.parametrize("path", ACTIONS)
def test_actions_on_missing_entries_do_nothing(browser: Browser, make: Make, path: str) -> None:
    make("orders")
    answer = browser.post(path, "nope", **token(browser))
    assert answer.status_code == 404


@pytest.mark.parametrize("path", [path for path in ACTIONS if path not in FORMS])
def test_reloading_an_action_does_nothing(
    browser: Browser, make: Make, schedule: Schedule, path: str
) -> None:
    before = make("orders").texts()
    answer = browser.ask(path, name="orders")
    assert (answer.status_code, answer.location) == (303, "/entry?name=orders")
    assert schedule["orders"].texts() == before


@pytest.mark.parametrize("path", ACTIONS)
def test_a_form_from_another_site_is_refused(
    browser: Browser, make: Make, schedule: Schedule, path: str, redis_client: redis.Redis
) -> None:
    before = make("orders").texts()
    seen = form_of(browser.get("/entry/edit", name="orders"))
    for fields in ({}, {"csrf_token": "guessed"}):
        answer = browser.post(path, "orders", kind="every", rule="5", **seen, **fields)
        assert answer.status_code == 400
        assert "Nothing was changed" in answer.text
    assert schedule["orders"].texts() == before
    assert not is_triggered(redis_client, "redbeat:orders")


@pytest.mark.parametrize("path", ACTIONS)
def test_a_read_only_dashboard_refuses_actions(
    open_page: Open, browser: Browser, make: Make, schedule: Schedule, path: str
) -> None:
    before = make("orders").texts()
    reader = open_page(read_only=True)
    page = reader.get("/entry", name="orders")
    assert "read-only" in page
    assert "<form" not in page
    answer = reader.post(path, "orders", kind="every", rule="5", **token(browser))
    assert answer.status_code == 403
    assert schedule["orders"].texts() == before


def select(browser: Browser, action: str, *names: str, **fields: str) -> str:
    """Select entries in the list, choose an action and confirm it; return the next page."""
    page = browser.get("/")
    chosen = [f"{name}" for name in re.findall(r'name="entry" value="([^"]*)"', page)]
    boxes = {unquote(text, errors="surrogateescape"): text for text in chosen}
    asked = browser.client.post(
        "/selected",
        data={**token_in(page), "action": action, "entry": [boxes[name] for name in names]},
    )
    assert asked.status_code == 200, asked.text
    hidden = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', asked.text)
    data: dict[str, list[str]] = {}
    for name, value in hidden:
        data.setdefault(name, []).append(unescape(value))
    answer = browser.client.post("/selected", data={**data, **fields})
    assert answer.status_code == 303, answer.text
    return browser.get(answer.location)


def token_in(page: str) -> dict[str, str]:
    """Return the form field with the CSRF token of a page."""
    found = re.search(r'name="csrf_token" value="([^"]+)"', page)
    assert found is not None
    return {"csrf_token": found[1]}


def test_several_entries_are_paused_resumed_triggered_and_deleted(
    browser: Browser, make: Make, schedule: Schedule, redis_client: redis.Redis
) -> None:
    for name in ("a", "b/%41 ü", "rest"):
        make(name)
    chosen = ("a", "b/%41 ü")
    assert "Paused 2 entries." in select(browser, "pause", *chosen, note="shop is closed")
    assert [schedule[name].status.note for name in chosen] == ["shop is closed"] * 2
    assert schedule["rest"].enabled
    assert "Resumed 2 entries." in select(browser, "resume", *chosen)
    assert all(schedule[name].enabled for name in chosen)
    assert "Triggered 1 entry." in select(browser, "trigger", "a")
    assert is_triggered(redis_client, "redbeat:a")
    assert not is_triggered(redis_client, "redbeat:rest")
    assert "Deleted 2 entries." in select(browser, "delete", *chosen)
    assert list(schedule) == ["rest"]


def test_a_name_that_is_no_utf8_can_be_selected(
    browser: Browser, make: Make, redis_client: redis.Redis
) -> None:
    make("orders")
    definition = redis_client.hget("redbeat:orders", "definition")
    redis_client.hset(b"redbeat:\xff", "definition", definition)
    redis_client.zadd("redbeat::schedule", {b"redbeat:\xff": 5e9})
    assert "Deleted 1 entry." in select(browser, "delete", "\udcff")
    assert not redis_client.exists(b"redbeat:\xff")


def test_a_selection_is_confirmed_before_anything_changes(
    browser: Browser, make: Make, schedule: Schedule, redis_client: redis.Redis
) -> None:
    make("a")
    redis_client.sadd("redbeat::statics", "a")
    data = {**token_in(browser.get("/")), "action": "delete", "entry": "a"}
    page = browser.client.post("/selected", data=data).text
    assert "Delete 1 entry?" in page
    assert "adds this entry again: a" in page
    assert "a" in schedule
    del data["entry"]
    answer = browser.client.post("/selected", data={**data, "confirmed": "1"})
    assert "No entry was selected." in browser.get(answer.location)


def test_what_was_left_out_of_a_selection_is_shown(
    browser: Browser, make: Make, schedule: Schedule
) -> None:
    make("a")
    make("gone")
    data = {**token_in(browser.get("/")), "confirmed": "1", "entry": ["a", "gone"]}
    del schedule["gone"]
    for action in ("trigger", "pause"):
        answer = browser.client.post("/selected", data={**data, "action": action})
        assert "1 of 2 selected entries were skipped" in browser.get(answer.location)
    assert not schedule["a"].enabled


def test_an_unreadable_entry_does_not_stop_the_others(
    browser: Browser, make: Make, broken: Callable[[str, str], None], redis_client: redis.Redis
) -> None:
    for name in ("a", "z"):
        make(name)
    broken("bad", "{")
    data = {**token_in(browser.get("/")), "confirmed": "1", "action": "trigger"}
    answer = browser.client.post("/selected", data={**data, "entry": ["a", "bad", "z"]})
    page = browser.get(answer.location)
    assert "Triggered 2 entries." in page
    assert "1 of 3 selected entries were skipped: &#39;bad&#39;: " in page
    assert all(is_triggered(redis_client, f"redbeat:{name}") for name in ("a", "z"))


@pytest.mark.parametrize("fields", [{"action": "explode"}, {"action": "pause", "csrf_token": ""}])
def test_a_wrong_selection_changes_nothing(
    browser: Browser, make: Make, schedule: Schedule, fields: dict[str, str]
) -> None:
    make("a")
    data = {**token_in(browser.get("/")), "entry": "a", "confirmed": "1", **fields}
    assert browser.client.post("/selected", data=data).status_code == 400
    assert schedule["a"].enabled


def test_an_entry_that_is_not_scheduled_can_be_resumed(
    browser: Browser, make: Make, schedule: Schedule, redis_client: redis.Redis
) -> None:
    for name in ("orders", "other"):
        make(name)
    redis_client.zrem("redbeat::schedule", "redbeat:orders")
    page = browser.get("/entry", name="orders")
    assert '<span class="badge not-scheduled">not scheduled</span>' in page
    assert "No run until you resume the entry" in page
    assert "Next runs if you resume the entry" in page
    assert "Trigger now" not in page
    found = browser.get("/", state="not scheduled")
    assert 'data-key="orders"' in found
    assert 'data-key="other"' not in found
    assert "Resumed." in browser.done("/entry/resume", "orders")
    assert schedule["orders"].status.state == "scheduled"


def test_saving_the_form_schedules_an_entry(
    browser: Browser, make: Make, schedule: Schedule, redis_client: redis.Redis
) -> None:
    make("orders")
    redis_client.zrem("redbeat::schedule", "redbeat:orders")
    edited(browser, "orders", "every", "7200")
    assert schedule["orders"].status.state == "scheduled"


def test_an_action_in_a_row_and_on_a_selection_keeps_the_search(
    browser: Browser, make: Make
) -> None:
    make("orders")
    make("other")
    page = browser.get("/", q="ord", sort="name")
    assert 'formaction="/entry/pause?name=orders"' in page
    assert 'formaction="/entry/trigger?name=orders"' in page
    search = {"search": "?q=ord&sort=name"}
    for action, message in (("pause", "Paused orders."), ("resume", "Resumed orders.")):
        answer = browser.send(f"/entry/{action}", "orders", **search)
        assert answer.location == "/?q=ord&sort=name"
        assert message in browser.get(answer.location)
    chosen = {"action": "pause", "entry": "orders", **search}
    page = browser.send("/selected", **chosen).text
    assert 'href="/?q=ord&amp;sort=name">Cancel' in page
    assert 'name="search" value="?q=ord&amp;sort=name"' in page
    answer = browser.send("/selected", **chosen, confirmed="1")
    assert answer.location == "/?q=ord&sort=name"


@pytest.mark.parametrize("search", ["//evil.example/", "?x=\r\nX: y", "?a", "?q=%ff", "https://x"])
def test_an_action_leads_to_no_other_site(browser: Browser, make: Make, search: str) -> None:
    make("orders")
    answer = browser.send("/entry/pause", "orders", search=search)
    assert answer.status_code == 303
    assert answer.location.split("?")[0] == "/"


def test_all_that_match_are_selected(browser: Browser, schedule: Schedule) -> None:
    schedule.save_all(
        RedBeatSchedulerEntry(f"{kind}{number}", "task", 3600, app=schedule.app)
        for kind in ("a", "b")
        for number in range(60)
    )
    assert "All 60 that match" in browser.get("/", q="a*")
    assert "that match" not in browser.get("/", q="a1*")
    fields = {"action": "pause", "all": "1", "search": "?q=a*&per=20&sort=-name"}
    page = browser.send("/selected", **fields, entry="b1").text
    assert "Pause 60 entries?" in page
    assert {name for name in schedule if f'name="entry" value="{name}"' in page} == {
        f"a{number}" for number in range(60)
    }
    assert browser.send("/selected", **{**fields, "search": "?sort=odd"}).status_code == 400


def test_at_most_500_that_match_are_selected(browser: Browser, schedule: Schedule) -> None:
    schedule.save_all(
        RedBeatSchedulerEntry(f"e{number}", "task", 3600, app=schedule.app) for number in range(501)
    )
    assert "The first 500 that match" in browser.get("/")
    page = browser.send("/selected", action="pause", all="1", search="?").text
    assert page.count('name="entry"') == 500
    assert "At most 500 entries are taken at once" in page
