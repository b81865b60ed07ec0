"""Tests of what operators do on the dashboard, with a real beat and a real worker."""

from __future__ import annotations

import json
import re

import redis
from playwright.sync_api import Page, Route, expect

from redbeat.management.schedule import Schedule
from tests.acceptance.processes import Project
from tests.browser.conftest import TASK, NewPage
from tests.conftest import Make
from tests.waiting import wait_until


def open_entry(page: Page, name: str) -> None:
    """Search for an entry by a part of its name, and open its page."""
    page.goto("/")
    search = page.get_by_role("searchbox").first
    search.fill(name[1:])
    search.press("Enter")
    entries = page.locator("#entries")
    expect(entries.get_by_role("link", name="unrelated")).to_have_count(0)
    entries.get_by_role("link", name=name, exact=True).click()
    expect(page.get_by_role("heading", name=name)).to_be_visible()


def test_find_pause_and_resume_an_entry(
    page: Page, project: Project, schedule: Schedule, make: Make
) -> None:
    for name in ("billing-report", "unrelated"):
        make(name, 1.0)
    project.worker()
    project.beat()
    project.wait_for_runs("billing-report", 1)

    open_entry(page, "billing-report")
    page.get_by_label("Note").first.fill("invoices are wrong")
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_text("invoices are wrong").first).to_be_visible()
    assert not schedule["billing-report"].enabled
    ran, others = len(project.ran("billing-report")), len(project.ran("unrelated"))
    project.wait_for_runs("unrelated", others + 4)
    # One message may still have been on its way to the worker.
    assert len(project.ran("billing-report")) <= ran + 1

    ran = len(project.ran("billing-report"))
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    project.wait_for_runs("billing-report", ran + 2)


def test_trigger_an_entry(page: Page, project: Project, make: Make) -> None:
    make("nightly")
    make("unrelated")
    project.worker()
    project.beat()
    open_entry(page, "nightly")
    page.get_by_role("button", name=re.compile("trigger|run now", re.IGNORECASE)).click()
    (run,) = project.wait_for_runs("nightly", 1)
    expect(page.get_by_text(run["task_id"]).first).to_be_visible()
    expect(page.locator("#history")).to_contain_text("triggered")


def test_edit_a_rule_after_a_preview_of_its_runs(
    page: Page, project: Project, schedule: Schedule, make: Make
) -> None:
    make("nightly")
    make("unrelated")
    project.worker()
    project.beat()
    open_entry(page, "nightly")
    page.get_by_role("link", name="Edit").click()
    before = page.locator("#preview").inner_text()
    form = page.locator("form", has=page.get_by_role("textbox", name="Rule"))
    rule = form.get_by_role("textbox", name="Rule")

    rule.fill("every so often")
    expect(form).to_contain_text(re.compile("every so often", re.IGNORECASE))
    expect(rule).to_have_attribute("aria-invalid", "true")
    assert schedule["nightly"].schedule.run_every.total_seconds() == 3600

    rule.fill("1")
    expect(rule).not_to_have_attribute("aria-invalid", "true")
    wait_until(lambda: page.locator("#preview").inner_text() != before, 20, "another preview")
    assert schedule["nightly"].schedule.run_every.total_seconds() == 3600
    form.get_by_role("button", name="Save").click()
    expect(page.get_by_text("The entry was changed")).to_be_visible()
    assert schedule["nightly"].schedule.run_every.total_seconds() == 1
    project.wait_for_runs("nightly", 2)


def test_countdown_reaches_zero_and_the_run_appears(
    page: Page, project: Project, make: Make
) -> None:
    make("soon", 8.0)
    make("unrelated")
    project.worker()
    project.beat()
    project.wait_for_runs("soon", 1)
    open_entry(page, "soon")
    page.evaluate("window.loadedOnce = true")
    countdown, history = page.locator("#next-run"), page.locator("#history tbody tr")
    countdowns: set[str] = set()

    def reached() -> bool:
        countdowns.add(countdown.inner_text())
        return any(re.search(r"\bin [1-5] ?s", text) for text in countdowns)

    wait_until(reached, 20, "a countdown near zero")
    before = history.count()

    def run_appeared() -> bool:
        countdowns.add(countdown.inner_text())
        return history.count() > before

    wait_until(run_appeared, 30, "another line of the history")
    assert len(countdowns) > 1
    assert page.evaluate("window.loadedOnce") is True


def test_the_open_page_of_a_deleted_entry_says_so_and_stops_polling(
    new_page: NewPage, schedule: Schedule, make: Make
) -> None:
    make("obsolete")
    page = new_page(expected="404")
    page.clock.install()
    page.goto("/entry?name=obsolete")
    del schedule["obsolete"]
    stale = page.locator("#stale")

    def told() -> bool:
        page.clock.run_for(500)
        return stale.is_visible()

    wait_until(told, 20, "what has become of the entry")
    expect(stale).to_contain_text("There is no entry 'obsolete'")
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.clock.run_for(60_000)
    expect(page.locator("#next-run")).to_contain_text("in 58 min")
    assert requests == []


def test_quarantine_is_shown_and_retried(
    page: Page, project: Project, schedule: Schedule, redis_client: redis.Redis
) -> None:
    redis_client.hset("redbeat:broken", "definition", "{not JSON")
    redis_client.zadd("redbeat::schedule", {"redbeat:broken": 0})
    project.worker()
    project.beat()
    wait_until(lambda: "broken" in schedule.quarantine(), 30, "the quarantine")
    page.goto("/beats")
    aside = page.locator("#quarantine")
    expect(aside).to_contain_text("broken")
    expect(aside).to_contain_text("not JSON")
    text = {
        "name": "broken",
        "task": TASK,
        "schedule": {"__type__": "interval", "every": 3600, "relative": False},
    }
    redis_client.hset("redbeat:broken", "definition", json.dumps(text))
    aside.get_by_role("button", name=re.compile("try again|retry", re.IGNORECASE)).click()
    wait_until(lambda: "broken" not in schedule.quarantine(), 30, "the end of the quarantine")
    project.wait_for_runs("broken", 1)
    page.goto("/beats")
    expect(page.locator("#beats")).to_be_visible()
    expect(page.get_by_text("not JSON")).to_have_count(0)


def test_create_an_entry_with_the_crontab_builder(
    page: Page, schedule: Schedule, redis_url: str
) -> None:
    assert redis_url
    page.goto("/")
    page.get_by_role("link", name="New entry").click()
    page.get_by_label("Name", exact=True).fill("monthly")
    page.get_by_label("Task", exact=True).fill(TASK)
    page.get_by_label("Repeat").select_option("month")
    page.get_by_role("spinbutton", name="Day of the month").fill("15")
    expect(page.get_by_role("textbox", name="Rule")).to_have_value("0 9 15 * *")
    expect(page.locator("#preview li")).to_have_count(10)
    page.get_by_role("button", name="Create entry").click()
    expect(page.get_by_role("heading", name="monthly")).to_be_visible()
    assert "monthly" in schedule


def choose(page: Page, names: tuple[str, ...], action: str) -> None:
    """Select entries on the main page, choose an action, and confirm it."""
    page.goto("/")
    for name in names:
        page.get_by_label(f"Select {name}", exact=True).check()
    expect(page.locator("#selected")).to_have_text("2 selected")
    page.get_by_role("button", name=f"{action}…").click()
    expect(page.locator("#names li")).to_have_count(2)
    page.get_by_role("button", name=f"{action} 2 entries").click()


def test_act_on_several_entries(
    page: Page, project: Project, schedule: Schedule, make: Make
) -> None:
    for name in ("a", "b", "c"):
        make(name)
    project.worker()
    project.beat()
    choose(page, ("a", "c"), "Pause")
    expect(page.get_by_text("Paused 2 entries.")).to_be_visible()
    assert [schedule[name].enabled for name in ("a", "b", "c")] == [False, True, False]
    choose(page, ("a", "c"), "Resume")
    choose(page, ("a", "c"), "Trigger")
    expect(page.get_by_text("Triggered 2 entries.")).to_be_visible()
    for name in ("a", "c"):
        project.wait_for_runs(name, 1)
    assert project.ran("b") == []
    choose(page, ("b", "c"), "Delete")
    expect(page.get_by_text("Deleted 2 entries.")).to_be_visible()
    expect(page.locator("#entries tbody tr")).to_have_count(1)
    assert set(schedule) == {"a"}


def test_filters_apply_when_they_change(page: Page, make: Make) -> None:
    make("active")
    make("asleep").pause()
    page.goto("/")
    rows = page.locator("#entries tbody tr")
    expect(rows).to_have_count(2)
    page.locator("#filter select[name=state]").select_option("paused")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("asleep")
    expect(page).to_have_url(re.compile("state=paused"))
    page.locator("#filter select[name=state]").select_option("")
    expect(rows).to_have_count(2)
    page.locator("#filter select[name=sort]").select_option("-name")
    expect(rows.first).to_contain_text("asleep")
    expect(page.locator("#filter select[name=state]")).to_have_value("")


def test_pause_resume_and_trigger_in_the_row(
    page: Page, project: Project, schedule: Schedule, make: Make
) -> None:
    make("nightly")
    make("unrelated")
    project.worker()
    project.beat()
    page.goto("/")
    # The search is applied without a new page; an action in a row keeps it all the same.
    page.get_by_role("searchbox").first.fill("nigh")
    rows = page.locator("#entries tbody tr")
    expect(rows).to_have_count(1)
    page.get_by_role("button", name="Pause nightly").click()
    expect(page.get_by_text("Paused nightly.")).to_be_visible()
    expect(page).to_have_url(re.compile(r"/\?q=nigh\b"))
    expect(rows).to_have_count(1)
    assert not schedule["nightly"].enabled
    page.get_by_role("button", name="Resume nightly").click()
    expect(page.get_by_text("Resumed nightly.")).to_be_visible()
    page.get_by_role("button", name="Trigger nightly").click()
    expect(page.get_by_text("Triggered nightly.")).to_be_visible()
    project.wait_for_runs("nightly", 1)
    assert project.ran("unrelated") == []


def test_every_wrong_field_is_marked_at_once(
    new_page: NewPage, schedule: Schedule, redis_url: str
) -> None:
    assert redis_url
    page = new_page("422")
    page.goto("/new")
    form = page.locator("#entry-form")
    form.get_by_label("Name", exact=True).fill("orders")
    form.get_by_label("Task", exact=True).fill(TASK)
    form.get_by_label("Queue").fill("imports")
    form.get_by_label("Args", exact=True).fill("[1, ")
    form.get_by_role("textbox", name="Rule").fill("0 2")
    form.get_by_label("Time zone").fill("Mars/Base")
    page.get_by_text("Limits, overlap and delivery").first.click()
    form.get_by_label("Jitter").fill("often")
    marked = form.locator("[aria-invalid=true]")
    expect(marked).to_have_count(4)  # while they are filled in
    form.get_by_role("button", name="Create entry").click()
    expect(page).to_have_url(re.compile("/new$"))
    expect(marked).to_have_count(4)
    form.get_by_label("Args", exact=True).fill("[1]")
    form.get_by_role("textbox", name="Rule").fill("0 2 * * *")
    form.get_by_label("Time zone").fill("Asia/Tokyo")
    form.get_by_label("Jitter").fill("90s")
    expect(marked).to_have_count(0)
    expect(page.locator("#preview")).to_contain_text("In Asia/Tokyo and in")
    form.get_by_role("button", name="Create entry").click()
    expect(page.get_by_text("The entry was created.")).to_be_visible()
    assert schedule["orders"].options == {"queue": "imports"}


def test_a_key_leads_to_the_search(page: Page, make: Make) -> None:
    make("orders")
    page.goto("/?q=ord")
    search = page.get_by_role("searchbox").first
    expect(search).not_to_be_focused()
    page.keyboard.press("/")
    expect(search).to_be_focused()
    page.keyboard.type("a/b")  # replaces the old search, and a slash in it is text
    expect(search).to_have_value("a/b")


def test_the_age_of_the_page_is_shown_while_redis_is_slow(new_page: NewPage, make: Make) -> None:
    make("orders")
    page = new_page(expected="503")
    page.clock.install()
    page.goto("/")
    expect(page.locator("#entries")).to_contain_text("orders")
    held: list[Route] = []
    page.route("**/*", lambda route: held.append(route))  # noqa: PLW0108
    stale = page.locator("#stale")

    def shown() -> bool:
        page.clock.run_for(1000)
        return stale.is_visible()

    wait_until(shown, 60, "the age of the page")
    expect(stale).to_have_text(
        re.compile(r"^The dashboard does not answer\. This page is \d+ s old\.$")
    )
    first = stale.inner_text()
    page.clock.run_for(5000)
    expect(stale).not_to_have_text(first)
    page.unroute("**/*")  # lets what was held go on
    expect(stale).to_be_hidden()


def test_recent_runs_and_the_past_of_the_timeline(page: Page, project: Project, make: Make) -> None:
    make("often", 2.0)
    make("unrelated")
    project.worker()
    project.beat()
    project.wait_for_runs("often", 2)
    page.goto("/?q=often")
    runs = page.get_by_role("img", name="Last runs, the latest last:")
    expect(runs).to_be_visible()
    expect(runs).to_have_accessible_name(re.compile("sent, sent"))
    page.get_by_role("link", name="Timeline").click()
    page.get_by_role("link", name="Last hour").click()
    expect(page.locator("#lanes").get_by_role("link", name="often").first).to_be_visible()
    expect(page.locator("#lanes")).not_to_contain_text("unrelated")
