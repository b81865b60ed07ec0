"""Tests of the content of the pages."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from html import unescape
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from celery import Celery
from celery.schedules import crontab
from flask import Flask

from redbeat import Calendar, clocked
from redbeat.calendar.zones import from_timestamp
from redbeat.entries.state import Ended
from redbeat.management import forecast
from redbeat.management.schedule import Schedule
from redbeat.presentation.text import due, duration
from redbeat.web import timeline
from redbeat.web.auth import Access
from redbeat.web.site import create_app
from redbeat.web.timeline import forecasts_of
from redbeat.worker import enable
from tests.conftest import Make
from tests.samples import one_in
from tests.servers import RedisServer
from tests.stored import put_failing, put_history, put_results, put_state
from tests.waiting import wait_until
from tests.web.conftest import Browser, Open

HOSTILE = "<script>alert(1)</script>"
NAMES = [
    HOSTILE,
    "a/b/../c",
    "x?y=1&z",
    "100%41",
    "ünï ☃",
    " spaces ",
    "#frag",
    "../..",
    "a+b",
    "'\"",
]


def part_of(page: str, name: str) -> str:
    """Return the section of a page with this id."""
    return page.partition(f'id="{name}"')[2].partition("</section>")[0]


def test_an_empty_schedule_says_so(browser: Browser) -> None:
    assert "No entries." in browser.get("/")
    assert "No runs in the next hour" in browser.get("/timeline")
    assert "The quarantine is empty" in browser.get("/beats")


def test_the_schedule_lists_entries_in_due_order(browser: Browser, make: Make) -> None:
    make("later", 7200)
    make("sooner", 60, task="proj.soon")
    make("asleep").pause()
    page = browser.get("/")
    assert page.index(">sooner<") < page.index(">later<") < page.index(">asleep<")
    assert "proj.soon" in page
    assert 'class="badge paused"' in page
    assert re.search(r'data-countdown="due">in (?:1 min|\d+ s)<', page)


def test_a_crontab_is_shown_with_its_zone(browser: Browser, make: Make) -> None:
    make("report", crontab(minute="0", hour="9", day_of_week="mon-fri"), timezone="Europe/Paris")
    assert "Europe/Paris" in browser.get("/")
    page = browser.get("/entry", name="report")
    assert "<dt>Time zone</dt><dd>Europe/Paris</dd>" in page
    assert page.count("09:00:00") == 10  # upcoming runs in Paris time; the hour in UTC is 07 or 08


@pytest.mark.parametrize("name", one_in(3, NAMES))
def test_any_name_has_a_page_and_is_escaped(browser: Browser, make: Make, name: str) -> None:
    make(name, args=[HOSTILE], kwargs={HOSTILE: HOSTILE}).pause(f"note {HOSTILE}")
    listed = browser.get("/")
    link = unescape(re.split(r'<th scope="row">.*?<a href="', listed)[1].split('"')[0])
    pages = [listed, browser.get(link), browser.get("/timeline"), browser.get("/beats")]
    pages.append(browser.get(link.replace("/entry?", "/entry/delete?")))
    pages.append(browser.get(link.replace("/entry?", "/entry/edit?")))
    assert all(HOSTILE not in page for page in pages)
    assert browser.done("/entry/resume", name).count("Resumed.") == 1
    assert HOSTILE not in browser.done("/entry/delete", name)
    assert ">asleep<" not in browser.get("/")
    assert "No entries." in browser.get("/")


def test_the_entry_page_shows_all_of_it(browser: Browser, make: Make, schedule: Schedule) -> None:
    for name in ("de", "bank"):
        schedule.save_calendar(Calendar(name, ["2030-01-01"]))
    make(
        "orders",
        10,
        args=["north"],
        kwargs={"full": True},
        options={"queue": "imports"},
        jitter=2,
        exclude=("de", "bank"),
    )
    schedule["orders"].pause("ask Ann", "bob")
    page = browser.get("/entry", name="orders")
    for text in ("proj.note", '["north"]', '{"full": true}', '{"queue": "imports"}', "Jitter"):
        assert text in page, text
    assert "<dt>Exclude</dt><dd>de, bank</dd>" in page
    assert "by bob" in page
    assert "<q>ask Ann</q>" in page
    assert "No recorded runs yet." in page
    page = browser.get("/entry/edit", name="orders")
    assert 'name="rule"' in page
    assert "<option selected>every</option>" in page


def test_an_entry_without_a_success_in_time_is_a_problem(
    browser: Browser, make: Make, app: Celery, redis_client: redis.Redis
) -> None:
    enable(app)
    make("backup", 3600, expect_within=0.01)
    put_results(redis_client, "redbeat:backup", 1790000000, 2, 1790000000)
    page = browser.get("/entry", name="backup")
    for text in (browser.get("/"), browser.get("/beats"), page):
        assert "had no success for" in text
    assert "<dt>Last success</dt>" in page
    assert "<dt>Failures in a row</dt><dd>2</dd>" in page


def test_a_failing_one_off_has_no_next_run(
    browser: Browser, make: Make, redis_client: redis.Redis
) -> None:
    """Setup: the only run of the entry has been due for a minute, and could not be sent."""
    at = datetime.now(timezone.utc) - timedelta(minutes=1)
    make("once", clocked(at))
    now = time.time()
    put_failing(redis_client, "redbeat:once", 2, at.timestamp(), "TypeError: odd")
    put_history(redis_client, "redbeat:once", [f"{at.timestamp():.6f} +50 failed:TypeError:2"])
    redis_client.zadd("redbeat::schedule", {"redbeat:once": now + 30})
    page = browser.get("/entry", name="once")
    assert 'class="badge failing"' in page
    assert "No more runs" in part_of(page, "coming")
    assert "No runs yet" not in page
    assert "failed:TypeError" in part_of(page, "history")


def test_the_next_runs_of_an_entry_with_spread_name_its_offset(
    browser: Browser, make: Make
) -> None:
    entry = make("spread", crontab(minute="0"), spread=3600)
    page = part_of(browser.get("/entry?name=spread"), "coming")
    assert f"delays each run by {duration(entry.spread_offset)}; these times include" in page
    make("plain", crontab(minute="0"))
    assert "these times include" not in browser.get("/entry?name=plain")


def test_the_history_has_results(browser: Browser, make: Make, redis_client: redis.Redis) -> None:
    make("orders")
    lines = ("1790000060 +0.1 sent second", "1790000000 +0.1 sent first")
    put_history(redis_client, "redbeat:orders", lines)
    second = Ended("second", "failed", 0.5, 0, "ValueError: <b>", 1790000061)
    first = Ended("first", "succeeded", 1, at=1790000001.5)
    ends = ((1790000060, second), (1790000000, first))
    put_results(redis_client, "redbeat:orders", 1790000001.5, 1, 1790000000, *ends)
    history = part_of(browser.get("/entry", name="orders"), "history")
    assert 'class="badge succeeded">succeeded' in history
    assert "ValueError: &lt;b&gt;" in history
    assert "<b>" not in history


def test_the_list_says_all_that_is_wrong_and_what_to_do(
    browser: Browser, make: Make, redis_client: redis.Redis
) -> None:
    for number in range(7):
        make(f"e{number}")
        redis_client.zadd(".redbeat::failed", {f"redbeat:e{number}": 3})
    page = part_of(browser.get("/"), "problem")
    assert "No beat leads" in page
    assert "Start a beat" in page
    assert page.count("The last 3 runs of e") == 7
    assert "<summary>3 more</summary>" in page
    assert 'href="/?last_result=failed"' in page
    assert "Look at the log of its worker" in page


def test_the_list_has_the_last_result_and_the_recent_runs(
    browser: Browser, make: Make, redis_client: redis.Redis
) -> None:
    make("orders", total_run_count=9, last_run_at=datetime(2026, 9, 21, tzinfo=timezone.utc))
    make("quiet")
    lines = ("1790000060 +0.1 sent second", "1790000000 +0.1 sent first")
    old = [f"{1789990000 - number} +1 skipped" for number in range(7)]
    put_history(redis_client, "redbeat:orders", (*lines, *old))
    second = Ended("second", "failed", 0.5, 0, "ValueError: <b>", 1790000061)
    first = Ended("first", "succeeded", 1, at=1790000001.5)
    ends = ((1790000060, second), (1790000000, first))
    put_results(redis_client, "redbeat:orders", 1790000001.5, 1, 1790000000, *ends)
    put_state(
        redis_client, "redbeat:orders", results=[1790000001.5, 1, 1790000000, ["second"], "failed"]
    )
    page = part_of(browser.get("/"), "entries")
    assert (
        'aria-label="Last runs, the latest last: skipped, skipped, skipped, succeeded, failed"'
        in page
    )
    assert page.count("ValueError: &lt;b&gt;") == 1
    assert page.count("last run failed") == 1
    found = browser.get("/", last_result="failed")
    assert ">orders</a>" in found
    assert ">quiet</a>" not in found
    assert "<option selected>failed</option>" in found


def test_the_history_is_drawn(browser: Browser, make: Make, redis_client: redis.Redis) -> None:
    entry = make("orders")
    lines = ["1790000009 +0.25", *(f"{1790000000 + n} +0.25 sent id-{n}" for n in range(3))]
    lines.append("1789999999 +1 missed:4")
    put_history(redis_client, "redbeat:orders", lines)
    page = browser.get("/entry", name="orders")
    assert "<svg" in part_of(page, "lateness")
    history = part_of(page, "history")
    assert history.count(">250 ms<") == 4
    assert entry.own_task_id(from_timestamp(1790000009)) in history
    assert 'class="badge missed">missed:4' in history


def test_the_timeline_has_the_past(browser: Browser, make: Make, redis_client: redis.Redis) -> None:
    make("orders")
    make("often")
    make("old")
    at = time.time() // 60 * 60 - 600
    put_history(
        redis_client, "redbeat:orders", [f"{at} +5", f"{at - 60} +1 skipped", f"{at - 120} +70"]
    )
    put_history(redis_client, "redbeat:old", [f"{at - 7200} +1"])
    page = browser.get("/timeline", span="last-hour")
    assert "2 runs from 1 entry" in page
    assert "in one bar" in page
    assert "more often than their histories" not in page
    assert "3 runs from 2 entries" in browser.get("/timeline", span="last-day")
    put_history(redis_client, "redbeat:often", [f"{at + 9 - number} +1" for number in range(10)])
    browser.client.application.extensions["forecasts"] = forecasts_of(Schedule(make("x").app))
    page = browser.get("/timeline", span="last-hour")
    assert "12 runs from 2 entries" in page
    assert "more often than their histories" in page
    assert re.search(r">often</a> .10, <a", part_of(page, "busiest"))


def test_a_busy_minute_names_the_entries_that_make_it_busy(browser: Browser, make: Make) -> None:
    for number in range(10):
        make(f"a{number}", crontab())
    make("x", crontab(minute="30"))
    make("y", crontab(minute="30"))
    busiest = part_of(browser.get("/timeline", span="hour"), "busiest")
    row = busiest.split("</tr>")[1]
    assert re.findall(r">(\w+)</a>", row)[:3] == ["x", "y", "a0"]
    assert " and 4 more runs" in row


def test_the_timeline_has_the_load_and_the_busiest_minutes(browser: Browser, make: Make) -> None:
    for name in ("a", "b", "c"):
        make(name, crontab(minute="30"))
    make("often", 600)
    page = browser.get("/timeline", span="day")
    assert "<svg" in page
    assert "from 4 entries" in page
    assert "/entry?name=often" in page
    busiest = part_of(page, "busiest")
    assert all(f">{name}</a>" in busiest for name in ("a", "b", "c"))
    assert browser.get("/timeline", code=404, span="year")


@pytest.mark.long
@pytest.mark.parametrize(
    ("span", "bars", "each", "title"),
    [
        ("hour", 60, 4, "Runs per minute"),
        ("day", 96, 60, "Runs per 15 minutes"),
        ("week", 84, 480, "Runs per 2 hours"),
    ],
)
def test_each_bar_of_the_load_is_all_of_its_minutes(
    browser: Browser, make: Make, span: str, bars: int, each: int, title: str
) -> None:
    for number in range(4):
        make(f"e{number}", crontab())
    page = browser.get("/timeline", span=span)
    assert f">{title}<" in page
    load = part_of(page, "load")
    # The first and last bars also cover complete minutes.
    assert len(re.findall(rf"<title>{each} runs, ", load)) == load.count('class="hit"') == bars


def test_the_busiest_minute_comes_first(browser: Browser, make: Make) -> None:
    now = datetime.now(timezone.utc)
    soon, later = now + timedelta(minutes=20), now + timedelta(minutes=40)
    for name, when in (("a", soon), ("b", soon), ("c", later), ("d", later), ("e", later)):
        make(name, clocked(when.replace(second=0, microsecond=0)))
    busiest = part_of(browser.get("/timeline"), "busiest")
    assert re.findall(r'data-label="Runs">(\d)<', busiest) == ["3", "2"]
    assert f">{later:%Y-%m-%d %H:%M}<" in busiest


def test_times_are_in_the_zone_of_the_viewer(browser: Browser, make: Make) -> None:
    make("noon", crontab(minute="0", hour="12"))
    page = browser.get("/entry", name="noon")
    assert part_of(page, "coming").count(" 12:00:00<") == 10
    browser.client.set_cookie("redbeat_zone", "Asia/Tokyo")
    page = browser.get("/entry", name="noon")
    coming = part_of(page, "coming")
    assert coming.count(" 12:00:00<") == coming.count(" 21:00:00<") == 10
    assert 'placeholder="UTC"' in browser.get("/entry/edit", name="noon")
    assert "every day at 12:00, UTC" in page
    assert 'class="zone" x="42" y="164" text-anchor="end">JST<' in browser.get(
        "/timeline", span="day"
    )


@pytest.mark.parametrize("zone", ["Mars/Olympus", "../../etc/passwd", "x" * 4000, "é☃", "<b>"])
def test_an_unknown_zone_is_replaced_by_that_of_the_app(
    browser: Browser, make: Make, zone: str
) -> None:
    make("noon", crontab(minute="0", hour="12"))
    browser.client.set_cookie("redbeat_zone", zone)
    page = browser.get("/entry", name="noon")
    assert "Times are in <span data-viewer-zone>UTC</span>" in page
    assert zone not in page


def test_tiles_with_a_count_of_0_are_left_out(
    browser: Browser, make: Make, broken: Callable[[str, str], None]
) -> None:
    make("orders")
    tiles = browser.get("/").split('id="summary"')[1].split("</ul>")[0]
    assert "</b> scheduled" in tiles
    assert "<b>0</b> due now" in tiles
    assert not re.search("paused|finished|quarantined", tiles)
    broken("bad", "{")
    tiles = browser.get("/").split('id="summary"')[1].split("</ul>")[0]
    assert '<li class="bad"><a href="/?state=quarantined"><b>1</b> quarantined' in tiles


def test_the_preview_of_a_wrong_rule_has_no_runs(browser: Browser, make: Make) -> None:
    make("orders")
    page = browser.send("/entry/preview", "orders", kind="cron", rule="*/5").text
    assert "has 1 field, but a crontab has 5" in page
    assert "<li" not in part_of(page, "preview")
    assert "No preview" in page


@pytest.mark.parametrize(
    ("offset", "words"),
    [
        (-0.0004, "in sync with Redis, within 10 ms"),
        (0.25, "this host is 250 ms ahead of Redis"),
        (-90.0, "this host is 1 min 30 s behind Redis"),
    ],
)
def test_clocks_are_compared_in_words(shared_site: Flask, offset: float, words: str) -> None:
    macros: Any = shared_site.jinja_env.get_template("macros.html").module
    assert macros.clock(offset).strip() == words


def test_the_beats_are_shown(browser: Browser, app: Celery, redis_client: redis.Redis) -> None:
    assert "No beat leads" in browser.get("/beats")
    since = int(datetime.now(timezone.utc).timestamp()) - 60
    redis_client.set("redbeat::lock", f"redbeat3:host-7:4711:{since}:abc")
    page = browser.get("/beats")
    assert re.search(r">1 min(?: \d s)? ago<", page)
    for text in ("host-7", "pid 4711", 'class="badge leader"', "redbeat::lock"):
        assert text in page, text
    assert "Last tick" not in page  # no beat has stored its last tick
    client, now = redis_client, time.time()
    beats = {f"redbeat3:host-8:4712:{since}:def lock": now - 3}
    client.zadd(".redbeat::beats", beats)
    page = browser.get("/beats")
    for text in ("host-8", 'class="badge standby"', "Last tick", "s ago", "unknown"):
        assert text in page, text
    assert "Leader: <b>host-7</b>, <b>1</b> standby" in browser.get("/")
    taken = f"{now - 7200} redbeat3:host-7:4711:{since}:abc"
    client.hset(".redbeat::stats", "leader", taken)
    assert re.search(r">2 h(?: \d s)? ago<", browser.get("/beats"))
    assert app.conf.redbeat_redis_url.split("/")[2] in page


def test_no_password_of_redis_is_shown(
    open_page: Open, app: Celery, redis_url: str, make: Make
) -> None:
    make("orders")
    secret = "hunter2-secret"
    app.conf.redbeat_redis_url = redis_url
    shown = redis_url.replace("redis://", f"redis://user:{secret}@")
    vars(app.redbeat_conf)["redis_url"] = shown
    browser = open_page()
    pages = [browser.get(path) for path in ("/", "/timeline", "/beats", "/entry?name=orders")]
    assert "user:**@" in pages[2]
    assert all(secret not in page for page in pages)


def test_the_quarantine_shows_the_text_and_why(
    browser: Browser, broken: Callable[[str, str], None]
) -> None:
    broken("bad", '{"name": <script>')
    for page in (browser.get("/beats"), browser.get("/entry", name="bad")):
        assert "definition: is no JSON" in page
        assert "&lt;script&gt;" in page
        assert ">Retry</button>" in page
    front = browser.get("/")
    assert "quarantined" in front
    assert "<small>celery redbeat list --state quarantined" in front  # no capital in a command


def test_the_page_of_a_missing_entry_is_not_found(browser: Browser) -> None:
    assert "no entry &#39;nope&#39;" in browser.get("/entry", code=404, name="nope")
    browser.get("/entry", code=404)
    browser.get("/entry?name=%ff", code=404)
    browser.get("/nowhere", code=404)


@pytest.mark.parametrize(
    "query",
    ["sort=size", "state=odd", "static=maybe", "last_result=bad", "after=x", "after=1"],
)
def test_wrong_queries_are_reported(browser: Browser, query: str) -> None:
    page = browser.get(f"/?{query}", code=400)
    assert query.partition("=")[0] in page
    assert 'id="filter"' in page


def test_an_outage_of_redis_is_shown(app: Celery) -> None:
    with RedisServer() as server:
        app.conf.redbeat_redis_url = server.url
        schedule = Schedule(app)
        browser = Browser(create_app(schedule, Access()).test_client(), {})
        browser.get("/")
        server.kill()
        page = browser.get("/", code=503)
        assert "Redis is unavailable" in page
        assert 'http-equiv="refresh"' in page
        assert browser.send("/entry/pause", "x").status_code in (400, 503)
        server.restart()
        wait_until(lambda: browser.ask("/").status_code == 200, 20, "the page")


def test_the_runs_of_a_large_schedule_are_counted_step_by_step(
    browser: Browser, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first page comes before all entries are read, and the page asks for the others."""
    monkeypatch.setattr(timeline, "STEP_SECONDS", 0.0)
    for number in range(510):
        make(f"entry-{number}", crontab(minute="30"))
    counted = []
    while "entries are counted so far" in (page := browser.get("/timeline")):
        assert 'data-poll="0.1"' in page
        counted += re.findall(r"(\d+) runs from \1 entries", page)
    assert 0 < int(counted[0]) < 510
    assert "510 runs from 510 entries" in page
    make("later", crontab(minute="30"))
    assert "510 runs from 510 entries" in browser.get("/timeline")


def test_a_count_that_an_outage_ended_begins_anew(app: Celery) -> None:
    with RedisServer() as server:
        app.conf.redbeat_redis_url = server.url
        schedule = Schedule(app)
        browser = Browser(create_app(schedule, Access()).test_client(), {})
        server.kill()
        browser.get("/timeline", code=503)
        server.restart()
        wait_until(lambda: browser.ask("/timeline").status_code == 200, 20, "the page")


def test_an_expensive_forecast_is_cached(browser: Browser, make: Make) -> None:
    forecasts: Any = browser.client.application.extensions["forecasts"]
    make("often", 60)
    found, fresh = forecasts["hour"].get()
    assert forecasts["hour"].get()[0] is found
    assert fresh > 0
    assert len(found.counts) * found.length == timedelta(hours=1)
    assert found.start.second == found.start.microsecond == 0


def test_a_past_that_takes_long_to_count_is_cached_for_long(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    count = forecast.past_load

    def slow(*arguments: Any) -> Any:
        now[0] += 3
        return count(*arguments)

    monkeypatch.setattr(forecast, "past_load", slow)
    monkeypatch.setattr(timeline, "time", SimpleNamespace(monotonic=lambda: now[0]))
    forecasts: Any = browser.client.application.extensions["forecasts"]
    found, fresh = forecasts["last-hour"].get()
    assert fresh == 20 * 3
    assert forecasts["last-hour"].get()[0] is found


@pytest.mark.parametrize(
    ("seconds", "words"), [(90, "in 1 min 30 s"), (0, "now"), (-9, "now"), (-75, "1 min 15 s late")]
)
def test_relative_times_in_words(seconds: int, words: str) -> None:
    now = datetime(2036, 1, 1, tzinfo=timezone.utc)
    assert due(now + timedelta(seconds=seconds), now) == words
