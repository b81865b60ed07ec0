"""Tests of the page that simulates an entry."""

from __future__ import annotations

import html
import re
from datetime import datetime, timedelta, timezone

import pytest
from celery.schedules import crontab

from tests.conftest import Make
from tests.web.conftest import Browser

HOSTILE = "<script>alert(1)</script>"
SPAN = {"from": "2027-03-27T12:00", "to": "2027-03-29T12:00"}


def rows_of(page: str) -> list[str]:
    """Return the text of each row of the table of runs."""
    rows = re.findall(r"<tr>(<td>.*?)</tr>", page.partition('id="runs"')[2], re.DOTALL)
    return [" ".join(html.unescape(re.sub(r"<[^>]+>", " ", row)).split()) for row in rows]


def test_runs_are_shown_with_their_local_times(browser: Browser, make: Make) -> None:
    make("n", crontab(minute="30", hour="2"), timezone="Europe/Berlin")
    assert 'href="/entry/simulate?name=n"' in browser.get("/entry", name="n")
    page = browser.get("/entry/simulate", 200, name="n", **SPAN)
    assert rows_of(page) == [
        "2027-03-28 03:00:00+02:00 2027-03-28 01:00:00",
        "2027-03-29 02:30:00+02:00 2027-03-29 00:30:00",
    ]
    assert "The clocks in Europe/Berlin go forward" in page


def test_another_rule_is_compared(browser: Browser, make: Make) -> None:
    make("n", crontab(minute="30", hour="2"))
    rule = {"kind": "cron", "rule": "30 2,4 * * *"}
    page = browser.get("/entry/simulate", 200, name="n", **SPAN, **rule)
    assert [row.split()[-1] for row in rows_of(page)][1::2] == ["added", "added"]
    assert "2 with both rules, 0 only with the stored rule, 2 only with this rule" in page
    wrong = browser.get("/entry/simulate", 422, name="n", **SPAN, kind="cron", rule=HOSTILE)
    assert 'role="alert"' in wrong
    assert HOSTILE not in wrong


def test_the_period_has_a_default_and_is_checked(browser: Browser, make: Make) -> None:
    make(HOSTILE, 3600)
    page = browser.get("/entry/simulate", name=HOSTILE)
    assert len(rows_of(page)) in (47, 48, 49)
    assert HOSTILE not in page
    for wrong in ({"from": "soon"}, {"from": "2027-01-02T00:00", "to": "2027-01-01T00:00"}):
        assert 'role="alert"' in browser.get("/entry/simulate", 422, name=HOSTILE, **wrong)
    assert browser.get("/entry/simulate", 404, name="nobody")


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Tokyo"])
def test_a_period_at_the_ends_of_the_range(browser: Browser, make: Make, zone: str) -> None:
    """The wall-clock times of some runs would be in the year 0 or 10000."""
    make("n", 3600, timezone=zone)
    for since, until in (
        ("0001-01-01T01:01+00:00", "0001-01-01T03:01+00:00"),
        ("9999-12-31T21:01+00:00", "9999-12-31T23:01+00:00"),
    ):
        page = browser.get("/entry/simulate", 200, name="n", **{"from": since, "to": until})
        assert len(rows_of(page)) == 2
    early = {"from": "0001-01-01T00:00+00:00", "to": "0001-01-01T02:01+00:00"}
    assert "too close to the year 1" in browser.get("/entry/simulate", 422, name="n", **early)


def test_long_lists_are_cut(browser: Browser, make: Make) -> None:
    make("often", 60)
    page = browser.get("/entry/simulate", name="often")
    assert len(rows_of(page)) == 500
    assert "Only the first 500 runs are listed" in page


def test_the_entry_page_shows_the_progress_of_a_backfill(browser: Browser, make: Make) -> None:
    entry = make("n", 3600)
    now = datetime.now(timezone.utc)
    entry.backfill(now - timedelta(hours=9.5), now - timedelta(hours=1))
    page = browser.get("/entry", name="n")
    assert re.search(r"<dt>Backfill</dt><dd>0 of [89] runs sent, from", page)
