"""Tests of the form that creates and changes entries."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from html import unescape
from html.parser import HTMLParser

import pytest
from celery import Celery
from celery.schedules import crontab
from jinja2 import BytecodeCache

from redbeat import rrule
from redbeat.entries.policy import FIELDS
from redbeat.management.schedule import Schedule
from tests.cli.test_classes import Owned
from tests.conftest import Make
from tests.web.conftest import Browser, Open, create_site

NEW = {"name": "nightly", "task": "proj.note", "kind": "cron", "rule": "30 2 * * *"}


def values_in(page: str) -> dict[str, str]:
    """Return the values of all fields of the form, as a browser would send them."""
    values = {}
    for name, text in re.findall(
        r'<textarea[^>]* name="(\w+)"[^>]*>\n(.*?)</textarea>', page, re.S
    ):
        values[name] = unescape(text)
    for name, text in re.findall(r'<input(?: id="\w+")? name="(\w+)" value="([^"]*)"', page):
        values[name] = unescape(text)
    for name, options in re.findall(r'<select[^>]* name="(\w+)"[^>]*>(.*?)</select>', page, re.S):
        chosen = re.search(r'<option(?: value="([^"]*)")? selected>([^<]*)<', options)
        first = re.search(r'<option(?: value="([^"]*)")?>([^<]*)<', options)
        found = chosen or first
        assert found is not None
        values[name] = found[2] if found[1] is None else found[1]
    seen = re.search(r'name="seen" value="([^"]*)"', page)
    assert seen is not None
    return {**values, "seen": seen[1]}


class Controls(HTMLParser):
    """Collects the elements that a script finds by their name or id in ``form.elements``."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: dict[str, list[str]] = {}
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the name and the id of a control."""
        values = dict(attrs)
        if tag in ("input", "select", "textarea", "fieldset") and values.get("type") != "hidden":
            for key in {values.get("name"), values.get("id")} - {None, ""}:
                self.found.setdefault(str(key), []).append(tag)


@pytest.mark.parametrize("path", ["/new", "/entry/edit", "/entry/simulate", "/"])
def test_a_script_finds_one_control_by_its_name(browser: Browser, make: Make, path: str) -> None:
    make("orders")
    found = Controls(browser.get(path, name="orders")).found
    found.pop("entry", None)  # the boxes that select entries
    assert len(found) > 4
    assert {name: tags for name, tags in found.items() if len(tags) > 1} == {}


def test_every_field_of_the_policy_can_be_edited(browser: Browser, make: Make) -> None:
    make("orders")
    values = values_in(browser.get("/entry/edit", name="orders"))
    assert set(FIELDS) - set(values) == {"managed_by"}


def test_a_time_zone_has_two_words(browser: Browser, make: Make) -> None:
    make("orders")
    assert '<label for="timezone">Time zone</label>' in browser.get("/entry/edit", name="orders")


def test_an_entry_is_created(browser: Browser, schedule: Schedule) -> None:
    page = browser.done(
        "/new",
        "",
        **NEW,
        args="[1, 2]",
        kwargs='{"full": true}',
        options='{"queue": "reports"}',
        description="The report of the night",
        timezone="Europe/Paris",
        end_time="2036-01-01T00:00",
        max_runs="10",
        jitter="1m30s",
        on_finish="disable",
        overlap="",
    )
    assert "The entry was created." in page
    assert "The report of the night" in page
    entry = schedule["nightly"]
    assert (entry.task, entry.args, entry.kwargs) == ("proj.note", [1, 2], {"full": True})
    assert entry.options == {"queue": "reports"}
    assert entry.schedule == crontab(minute="30", hour="2")
    assert (entry.max_runs, entry.jitter, entry.on_finish) == (10, 90, "disable")
    assert str(entry.end_time) == "2035-12-31 23:00:00+00:00"
    assert entry.enabled


def test_a_crontab_with_two_kinds_of_days_is_explained(browser: Browser) -> None:
    rule = {**NEW, "rule": "0 9 13 * fri-7"}
    warning = "For either, make two entries"
    assert warning in browser.send("/new/preview", **rule).text
    assert warning in browser.done("/new", "", **rule)
    assert warning not in browser.send("/new/preview", **NEW).text


def test_an_entry_is_created_paused(browser: Browser, schedule: Schedule) -> None:
    browser.done("/new", "", **NEW, paused="1")
    assert schedule["nightly"].status.state == "paused"


def test_a_class_may_save_without_arguments(app: Celery, compiled: BytecodeCache) -> None:
    browser = Browser(create_site(Schedule(app, Owned), compiled).test_client(), {})
    assert "The entry was created." in browser.done("/new", "", **NEW)
    values = values_in(browser.get("/entry/edit", name="nightly"))
    browser.done("/entry/edit", "nightly", **{**values, "rule": "31 2 * * *"})
    for code, name in ((200, "nightly"), (201, "other")):
        fields = {"task": "t", "every": 60}
        answer = browser.client.put("/api/entry", query_string={"name": name}, json=fields)
        assert answer.status_code == code, answer.text
    assert {entry.task for entry in Schedule(app, Owned).values()} == {"t"}


def test_an_existing_entry_is_not_replaced(
    browser: Browser, make: Make, schedule: Schedule
) -> None:
    before = make("nightly").texts()
    answer = browser.send("/new", **NEW)
    assert answer.status_code == 409
    assert "an entry with this name exists" in answer.text
    assert schedule["nightly"].texts() == before


@pytest.mark.parametrize(
    ("fields", "name", "message"),
    [
        ({"name": ""}, "name", "not empty"),
        ({"task": ""}, "task", "is missing"),
        ({"rule": ""}, "rule", "is empty"),
        ({"kind": "odd"}, "kind", "must be one of"),
        ({"kind": "cron", "rule": "0 9 * * Mon#1"}, "rule", "'Mon#1' must be"),
        ({"kind": "cron", "rule": "*/5 * *"}, "rule", "3 fields, but a crontab has 5"),
        ({"kind": "every", "rule": "often"}, "rule", "is not a duration"),
        ({"kind": "every", "rule": "0"}, "rule", "above 0"),
        ({"kind": "every", "rule": "1" * 400}, "rule", ""),
        ({"kind": "rrule", "rule": "RRULE:FREQ=OFTEN"}, "rule", "OFTEN"),
        ({"kind": "at", "rule": "tomorrow"}, "rule", "ISO 8601"),
        ({"kind": "solar", "rule": "sunset"}, "rule", "EVENT,LAT,LON"),
        ({"args": "{1"}, "args", "is not JSON; for example: [1, 2]"),
        ({"args": "{}"}, "args", "must be a list"),
        ({"kwargs": "[]"}, "kwargs", "must be a table"),
        ({"max_runs": "many"}, "max_runs", "is not a whole number; for example: 10"),
        ({"max_runs": "0"}, "max_runs", "above 0"),
        ({"jitter": "soon"}, "jitter", "is not a duration"),
        ({"start_time": "tomorrow"}, "start_time", "ISO 8601"),
        ({"on_finish": "explode"}, "on_finish", "must be one of"),
        ({"coalesce": "all"}, "catch_up_limit", "needs a bound"),
        ({"exclude": "nowhere"}, "exclude", "there is no calendar"),
        ({"timezone": "Mars/Base"}, "timezone", "unknown time zone"),
    ],
)
def test_an_error_is_beside_its_field_and_the_input_is_kept(
    browser: Browser, schedule: Schedule, fields: dict[str, str], name: str, message: str
) -> None:
    sent = {**NEW, **fields}
    answer = browser.send("/new", **sent)
    assert answer.status_code == 422
    error = re.search(rf'id="{name}-error"[^>]*>([^<]*)<', answer.text)
    assert error is not None
    assert message in unescape(error[1])
    kept = values_in(answer.text)
    assert all(
        kept[each] == text
        for each, text in sent.items()
        if each in kept and text != "odd" and text != "explode"
    )
    assert len(schedule) == 0


def test_saving_the_form_of_any_entry_again_changes_nothing(
    browser: Browser, make: Make, schedule: Schedule
) -> None:
    entry = make(
        "orders",
        crontab(minute="5", hour="*/2"),
        args=[1, "ü"],
        kwargs={"x": {"y": None}},
        options={"priority": 3},
        timezone="Asia/Tokyo",
        description="All\norders",
        start_time="2030-01-01T00:00:00+00:00",
        coalesce="all",
        catch_up_limit=5,
        jitter=0.5,
        overlap_timeout=90.0,
    )
    values = values_in(browser.get("/entry/edit", name="orders"))
    assert "Nothing was changed" in browser.done("/entry/edit", "orders", **values)
    assert schedule["orders"].texts() == entry.texts()


def test_a_stored_crontab_with_an_odd_name_stays_while_other_fields_change(
    browser: Browser, make: Make, schedule: Schedule
) -> None:
    """Celery and RedBeat 2 accept the name; only a new rule is refused."""
    make("orders", crontab("0", "9", "sundae"))
    values = values_in(browser.get("/entry/edit", name="orders"))
    browser.done("/entry/edit", "orders", **{**values, "jitter": "3"})
    entry = schedule["orders"]
    assert (entry.schedule, entry.jitter) == (crontab("0", "9", "sundae"), 3)


def test_an_empty_field_resets_its_value(browser: Browser, make: Make, schedule: Schedule) -> None:
    make("orders", args=[1], options={"queue": "x"}, max_runs=3, description="old", jitter=2)
    values = values_in(browser.get("/entry/edit", name="orders"))
    values.update(args="", options="", queue="", max_runs="", description="", jitter="")
    page = browser.done("/entry/edit", "orders", **values)
    assert "The entry was changed: args" in page
    entry = schedule["orders"]
    assert not entry.args
    assert not entry.options
    assert entry.policy.non_defaults() == {}


def test_a_conflict_shows_what_saving_again_changes(
    browser: Browser, make: Make, schedule: Schedule
) -> None:
    make("orders", kwargs={"a": 1})
    values = values_in(browser.get("/entry/edit", name="orders"))
    make("orders", 77, kwargs={"a": 2})
    answer = browser.send("/entry/edit", "orders", **{**values, "kwargs": '{"a": 3}'})
    assert answer.status_code == 409
    conflict = unescape(answer.text.split('id="conflict"')[1].split("</table>")[0])
    for text in ("every 1 h", "every 1 min 17 s", "{'a': 2}", "{'a': 3}"):
        assert text in conflict
    assert schedule["orders"].kwargs == {"a": 2}
    browser.done("/entry/edit", "orders", **values_in(answer.text))
    assert schedule["orders"].kwargs == {"a": 3}


@pytest.mark.parametrize(
    ("time", "zone"),
    [("9999-12-31T23:59:59", "America/New_York"), ("0001-01-01T00:00:00", "Asia/Tokyo")],
)
def test_a_time_outside_of_the_range_is_an_error_of_its_field(
    browser: Browser, make: Make, time: str, zone: str
) -> None:
    make("orders")
    values = values_in(browser.get("/entry/edit", name="orders"))
    values |= {"start_time": time, "timezone": zone}
    answer = browser.send("/entry/edit", "orders", **values)
    assert answer.status_code == 422
    assert "is not between the years 1 and 9999" in answer.text
    preview = browser.send("/entry/preview", "orders", **values)
    assert "is not between the years 1 and 9999" in preview.text


def test_a_new_entry_has_a_preview_before_it_has_a_name(
    browser: Browser, schedule: Schedule
) -> None:
    page = browser.send("/new/preview", kind="cron", rule="30 9 * * *", name="", task="").text
    assert page.split('id="preview"')[1].count("<li>") == 10
    assert len(schedule) == 0


def test_a_custom_schedule_stays_while_other_fields_change(
    browser: Browser, make: Make, schedule: Schedule
) -> None:
    start = datetime(2030, 1, 1, tzinfo=timezone.utc)
    when = rrule("DAILY", dtstart=start, interval=3)
    make("orders", when)
    values = values_in(browser.get("/entry/edit", name="orders"))
    browser.done("/entry/edit", "orders", **{**values, "description": "new"})
    assert schedule["orders"].schedule == when
    assert schedule["orders"].description == "new"


def test_a_read_only_dashboard_creates_nothing(open_page: Open, schedule: Schedule) -> None:
    reader = open_page(read_only=True)
    assert reader.send("/new", **NEW).status_code == 403
    assert "New entry" not in reader.get("/")
    assert len(schedule) == 0


WRONG = {
    "args": "[1,",
    "options": "[]",
    "timezone": "Mars/Base",
    "start_time": "soon",
    "max_runs": "many",
    "jitter": "-1",
    "rule": "* * *",
    "task": "",
}


def errors_in(page: str) -> set[str]:
    """Return the names of the fields of a page that have an error."""
    return set(re.findall(r'id="([a-z_]+)-error" role="status">[^<]', page))


def test_every_wrong_field_is_marked_at_once(
    browser: Browser, make: Make, schedule: Schedule
) -> None:
    before = make("orders").texts()
    values = values_in(browser.get("/entry/edit", name="orders"))
    values.update(WRONG, kind="cron", queue="reports")
    for path in ("/entry/edit", "/entry/preview"):
        page = browser.send(path, "orders", **values).text
        assert errors_in(page) == {*WRONG}
        assert page.count('aria-invalid="true"') == len(WRONG)
    assert schedule["orders"].texts() == before
    for path in ("/new", "/new/preview"):
        page = browser.send(path, **{**values, "name": "a\nb"}).text
        assert errors_in(page) >= {*WRONG} - {"task"}
    assert list(schedule) == ["orders"]


def test_one_correct_field_is_not_marked_because_another_is_wrong(browser: Browser) -> None:
    fields = {"kind": "odd", "rule": "1", "name": "a", "task": "t", "kwargs": "{}", "jitter": "x"}
    page = browser.send("/new", **fields).text
    assert errors_in(page) == {"kind", "jitter"}


def test_the_queue_is_a_field(browser: Browser, make: Make, schedule: Schedule) -> None:
    make("orders", options={"queue": "imports", "priority": 3})
    values = values_in(browser.get("/entry/edit", name="orders"))
    assert (values["queue"], values["options"]) == ("imports", '{"priority": 3}')
    assert "Nothing was changed" in browser.done("/entry/edit", "orders", **values)
    for queue, options in (
        ("reports", {"queue": "reports", "priority": 3}),
        ("", {"priority": 3}),
    ):
        values = values_in(browser.get("/entry/edit", name="orders"))
        page = browser.done("/entry/edit", "orders", **{**values, "queue": queue})
        assert "The entry was changed: options" in page
        assert schedule["orders"].options == options
    fields = {"name": "new", "task": "t", "kind": "every", "rule": "60", "queue": "imports"}
    browser.done("/new", "", **fields)
    assert schedule["new"].options == {"queue": "imports"}


def test_the_preview_names_the_zones_of_its_times(browser: Browser) -> None:
    fields = {"kind": "cron", "rule": "0 9 * * *", "timezone": "Asia/Tokyo"}
    preview = browser.send("/new/preview", **fields).text.split('id="preview"')[1]
    assert "In Asia/Tokyo and in <span data-viewer-zone>UTC</span>" in preview
    assert " 09:00:00 · <time" in preview
    assert "00:00:00</time>" in preview
    preview = browser.send("/new/preview", **{**fields, "timezone": ""}).text
    assert "In <span data-viewer-zone>UTC</span>" in preview
