"""Tests of every page: no problems, phone width, both colour schemes, keyboard."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

import pytest
import redis
from celery.schedules import crontab
from playwright.sync_api import Browser, Page, expect

from redbeat.entries.state import Ended
from redbeat.management.schedule import Schedule
from tests.acceptance.processes import Project
from tests.browser.chromium import inaccessible
from tests.browser.conftest import NewPage
from tests.conftest import Make
from tests.servers import free_port
from tests.stored import put_history, put_results
from tests.waiting import wait_until

HOSTILE = "<script>alert(1)</script>"
LONG = "reports.monthly." + "a-very-long-name-without-a-place-to-break" * 3
PATHS = (
    "/",
    "/?q=report&state=scheduled",
    "/?q=nothing-is-called-so",
    "/timeline?span=hour",
    "/timeline?span=day",
    "/timeline?span=week",
    f"/entry?name={quote(HOSTILE)}",
    f"/entry?name={LONG}",
    "/beats",
    "/new",
    f"/entry/edit?name={quote(HOSTILE)}",
    f"/entry/edit?name={LONG}",
    f"/entry/delete?name={LONG}",
    f"/entry/simulate?name={LONG}",
    "/entry?name=held",
    "/entry?name=done",
    "/entry?name=ended",
    "/entry/simulate?name=report&kind=cron&rule=0+8+*+*+*",
)
PHONE = {"width": 390, "height": 844}
DESKTOP = {"width": 1280, "height": 900}


@pytest.fixture
def entries(make: Make, redis_client: redis.Redis) -> None:
    """Save entries of all kinds; one of them has a name that contains a script."""
    make("report", crontab("0", "9", "mon-fri"))
    make("poll", 30.0)
    make(HOSTILE, 60.0, args=[HOSTILE], kwargs={"<b>": "</td>"})
    make(LONG, crontab("*/7", "8-17"), args=["word" * 60])
    make("held").pause(f"because {HOSTILE}")
    redis_client.hset("redbeat:broken", "definition", HOSTILE)
    redis_client.zadd("redbeat::schedule", {"redbeat:broken": -1})
    redis_client.hset(".redbeat::quarantine", "redbeat:broken", "[]")
    make("done", 60.0, max_runs=1, total_run_count=1, description=f"{HOSTILE} once")
    make("ended", 60.0)
    lines = ("1790000180 +0.1 sent id-3", "1790000120 +0.2 sent id-2", "1790000060 +0.1 missed:4")
    put_history(redis_client, "redbeat:ended", lines)
    failed = Ended("id-3", "failed", 0.5, 0, "ValueError: <b>", 1790000181)
    succeeded = Ended("id-2", "succeeded", 1, at=1790000121)
    ends = ((1790000180, failed), (1790000120, succeeded))
    put_results(redis_client, "redbeat:ended", 1790000001.5, 1, 1790000000, *ends)


WIDER = """() => {
  const root = document.documentElement;
  if (root.scrollWidth <= root.clientWidth) return [];
  const wide = (element) => element.getBoundingClientRect().right > root.clientWidth + 0.5;
  const named = (element) => `${element.tagName}.${element.getAttribute("class") ?? ""}`;
  return [...document.body.querySelectorAll("*")].filter(wide).map(named);
}"""


# WCAG 2.2 requires a contrast ratio of at least 4.5 between a text and its background. Hidden and
# disabled texts may have less.
FAINT = """() => {
  const parts = (color) => {
    const numbers = color.match(/[\\d.]+(?:e-?\\d+)?/g).map(Number);
    const scale = color.startsWith("color(") ? 255 : 1;
    return [numbers[0] * scale, numbers[1] * scale, numbers[2] * scale, numbers[3] ?? 1];
  };
  const light = (rgb) => {
    const [r, g, b] = rgb.map((part) => part / 255)
      .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const color = parts(getComputedStyle(at).backgroundColor);
      if (color[3] === 1) return color;
    }
    return [255, 255, 255, 1];
  };
  const found = [];
  for (const element of document.body.querySelectorAll("*")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!own || !element.checkVisibility() || element.closest("title, option, .hidden")) continue;
    const style = getComputedStyle(element);
    const color = parts(element.namespaceURI.endsWith("svg") ? style.fill : style.color);
    const pair = [light(color.slice(0, 3)), light(behind(element).slice(0, 3))];
    const ratio = (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
    if (ratio < 4.5) found.push(`${ratio.toFixed(1)}: ${element.textContent.trim().slice(0, 40)}`);
  }
  return found;
}"""


def faint(page: Page) -> list[str]:
    """Return the texts with too little contrast, and their contrast ratios."""
    found: list[str] = page.evaluate(FAINT)
    return found


def sticking_out(page: Page) -> list[str]:
    """Return the elements that are wider than the window, so that it scrolls sideways."""
    found: list[str] = page.evaluate(WIDER)
    return found[:5]


def problems(page: Page) -> list[str]:
    """Return what sticks out, what has too little contrast, and what axe finds."""
    expect(page.get_by_role("heading").first).to_be_visible()
    return sticking_out(page) + faint(page) + inaccessible(page)


each_scheme = pytest.mark.parametrize("scheme", ["light", "dark"])
each_size = pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])


@pytest.mark.usefixtures("entries")
@each_scheme
@each_size
def test_pages_are_quiet_and_fit(new_page: NewPage, scheme: str, size: dict[str, int]) -> None:
    page = new_page(viewport=size, color_scheme=scheme)
    for path in PATHS:
        answer = page.goto(path)
        assert answer is not None
        assert answer.ok, path
        assert "default-src 'none'" in (answer.header_value("content-security-policy") or "")
        assert problems(page) == [], path


@pytest.mark.usefixtures("entries")
@each_scheme
@each_size
def test_forms_that_are_filled_in_are_accessible(
    new_page: NewPage, schedule: Schedule, scheme: str, size: dict[str, int]
) -> None:
    page = new_page(expected="status of 4", viewport=size, color_scheme=scheme)
    page.goto("/")
    for name in ("report", LONG):
        page.get_by_label(f"Select {name}", exact=True).check()
    expect(page.locator("#selected")).to_have_text("2 selected")
    assert problems(page) == []
    for action in ("Pause", "Delete"):
        page.goto("/")
        page.get_by_label("Select report", exact=True).check()
        page.get_by_role("button", name=f"{action}…").click()
        expect(page.get_by_role("heading", name=f"{action} 1 entry?")).to_be_visible()
        assert problems(page) == [], action

    page.goto("/new")
    page.get_by_text("Limits, overlap and delivery").first.click()
    for repeat in ("minutes", "hour", "day", "week", "month"):
        page.get_by_label("Repeat").select_option(repeat)
        expect(page.locator("#preview li")).to_have_count(10)
        assert problems(page) == [], repeat
    page.get_by_label("Name", exact=True).fill("report")
    page.get_by_label("Task", exact=True).fill("proj.note")
    page.get_by_role("button", name="Create entry").click()
    expect(page.locator("#name-error")).to_contain_text("an entry with this name exists")
    assert problems(page) == []

    page.goto("/entry/edit?name=report")
    entry = schedule["report"]
    entry.description = "word " * 40
    entry.save()
    page.get_by_role("textbox", name="Rule").fill("0 8 * * *")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#conflict")).to_contain_text("Description")
    assert problems(page) == []
    page.get_by_role("textbox", name="Rule").fill("never")
    expect(page.get_by_role("textbox", name="Rule")).to_have_attribute("aria-invalid", "true")
    assert problems(page) == []
    page.goto("/entry?name=nobody")
    assert problems(page) == []


@each_scheme
@each_size
def test_the_sign_in_page_is_accessible(
    browser: Browser, project: Project, scheme: str, size: dict[str, int]
) -> None:
    port = str(free_port())
    web = project.start("redbeat", "web", "--port", port, "--token", "b1946ac92492d2347c6235b4")
    web.wait_for("The dashboard is at")
    options: dict[str, Any] = {"viewport": size, "color_scheme": scheme}
    with browser.new_context(**options) as context:
        page = context.new_page()
        page.goto(f"http://127.0.0.1:{port}/")
        page.get_by_label("Token").fill("wrong")
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("alert")).to_be_visible()
        assert problems(page) == []


def lightness(page: Page, of: str) -> float:
    """Return the lightness of a colour of the page's body, from 0 to 255."""
    color: str = page.evaluate(f"getComputedStyle(document.body).{of}")
    channels = [float(number) for number in re.findall(r"[\d.]+", color)]
    return sum(channels[:3]) / 3


@pytest.mark.parametrize(("scheme", "dark"), [("light", False), ("dark", True)])
def test_colours_follow_the_system(new_page: NewPage, scheme: str, dark: bool) -> None:
    page = new_page(color_scheme=scheme)
    page.goto("/")
    assert (lightness(page, "color") > lightness(page, "backgroundColor")) is dark


@pytest.mark.usefixtures("entries")
def test_a_name_that_contains_a_script_is_shown_as_text(page: Page) -> None:
    page.goto("/")
    page.locator("#entries").get_by_role("link", name=HOSTILE).click()
    expect(page.get_by_role("heading", name=HOSTILE)).to_be_visible()
    assert page.locator("script", has_text="alert").count() == 0


def focused(page: Page) -> str:
    """Return the text of the focused element if it is a button, otherwise an empty string."""
    found: str = page.evaluate(
        "document.activeElement.matches('button') ? document.activeElement.innerText.trim() : ''"
    )
    return found


def test_pause_by_keyboard(page: Page, schedule: Schedule, make: Make) -> None:
    make("report")
    page.goto("/entry?name=report")
    for _ in range(60):
        page.keyboard.press("Tab")
        if focused(page).startswith("Pause"):
            break
    assert focused(page).startswith("Pause"), "the button was not reached within 60 tabs"
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline != "none", "one cannot see what has the focus"
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Resume")).to_be_visible()
    assert not schedule["report"].enabled


def test_first_tab_skips_to_the_content(page: Page) -> None:
    page.goto("/")
    page.keyboard.press("Tab")
    target = page.evaluate("document.activeElement.getAttribute('href')")
    assert str(target).startswith("#")


def test_times_are_in_the_time_zone_of_the_reader(new_page: NewPage, make: Make) -> None:
    make("lunch", crontab("0", "12"))
    page = new_page(timezone_id="Asia/Tokyo")
    page.goto("/entry?name=lunch")
    expect(page.locator("#next-run")).to_contain_text("21:00:00")
    expect(page.get_by_text("Asia/Tokyo").first).to_be_visible()
    expect(page.locator("#upcoming thead")).to_contain_text("UTC")
    expect(page.locator("#upcoming tbody tr").first).to_contain_text("12:00:00")
    page.goto("/timeline?span=day")
    expect(page.locator("#load .zone")).to_have_text("JST")


def test_times_have_one_column_if_reader_and_entry_share_a_zone(
    new_page: NewPage, make: Make
) -> None:
    make("lunch", crontab("0", "12"), timezone="Asia/Tokyo")
    page = new_page(timezone_id="Asia/Tokyo")
    page.goto("/entry?name=lunch")
    expect(page.locator("#upcoming thead th")).to_have_text(["Asia/Tokyo", "When"])
    expect(page.locator("#upcoming tbody tr").first).to_contain_text("12:00:00")


def test_the_filter_is_collapsed_on_a_phone(new_page: NewPage, make: Make) -> None:
    make("report")
    page = new_page(viewport=PHONE)
    page.goto("/")
    state = page.locator("#filter [name=state]")
    expect(state).to_be_hidden()
    page.get_by_text("Filter and sort").click()
    expect(state).to_be_visible()
    page.set_viewport_size({"width": 1280, "height": 900})
    page.goto("/")
    expect(state).to_be_visible()
    expect(page.get_by_text("Filter and sort")).to_be_hidden()


def test_the_next_run_is_never_in_the_past(page: Page, make: Make) -> None:
    make("often", 2.0)
    page.goto("/entry?name=often")
    countdowns: set[str] = set()

    def counted() -> bool:
        countdowns.update(page.locator("#upcoming .less, #preview li").all_inner_texts())
        return any("now" in text for text in countdowns)

    wait_until(counted, 20, "a run that is now")
    assert not any("ago" in text or "late" in text for text in countdowns)


def test_page_works_without_scripts(new_page: NewPage, schedule: Schedule, make: Make) -> None:
    make("report")
    make("other")
    page = new_page(java_script_enabled=False)
    page.goto("/")
    page.get_by_role("searchbox", name="Search").fill("report")
    page.get_by_role("button", name="Search").click()
    page.locator("#entries").get_by_role("link", name="report").click()
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_text("Paused.")).to_be_visible()
    assert not schedule["report"].enabled


def test_the_checks_find_what_is_wrong(page: Page) -> None:
    page.goto("/")
    assert problems(page) == []
    page.evaluate("document.querySelector('h1').style.color = '#888'")
    page.evaluate("document.querySelector('h1').style.width = '2000px'")
    assert sticking_out(page) == ["H1."]
    assert len(faint(page)) == 1
    page.evaluate("document.querySelector('html').removeAttribute('lang')")
    assert "html-has-lang" in "".join(inaccessible(page))
