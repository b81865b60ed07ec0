"""Tests of the manual that run no examples: languages, syntax, and names of settings.

``test_python.py``, ``test_shell.py`` and ``test_home.py`` run the examples.
"""

from __future__ import annotations

import csv
import inspect
import json
import math
import re
import sys
from collections import Counter
from pathlib import Path

import click
import pytest
import yaml  # type: ignore[import-untyped]
from celery import Celery
from celery.utils.dispatch import Signal

import redbeat
from benchmarks.pages import taken
from redbeat import RedBeatSchedulerEntry, Schedule, errors, signals
from redbeat.beat import turn, upkeep
from redbeat.cli.edit import READ_IN_ZONE, add, edit
from redbeat.cli.operate import pause
from redbeat.codec.types import BY_TAG
from redbeat.config import ensure_conf
from redbeat.entries.policy import MAX_CALENDARS
from redbeat.entries.state import LONGEST_NOTE
from redbeat.management.doctor import BUSY, BUSY_FACTOR, REPAIRS
from redbeat.metrics.problems import KINDS
from redbeat.settings import IN_DJANGO, SETTINGS
from redbeat.transfer.entry_file import read_entry_file
from redbeat.web.pages import MAX_NOTE
from tests.docs.blocks import PAGES, ROOT, Block, blocks, blocks_of
from tests.metrics.scrapes import own_names

#: Attributes of an app that look like settings.
ATTRIBUTES = {"redbeat_conf", "redbeat_redis", "redbeat_tracks_runs"}
#: Metrics that look like settings.
METRICS = own_names() | {name.removesuffix("_bucket") for name in own_names()}
#: The languages of examples. Blocks with "text" or "none" are charts and files, which no test runs.
LANGUAGES = ("python", "json", "yaml", "toml", "sh", "console", "text", "none")


def test_no_example_is_overlooked() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    written = re.findall(r"^ *\.\. code-block:: (\w+)$", text, re.MULTILINE)
    assert len(blocks(*LANGUAGES)) == len(written) > 80
    assert set(written) == set(LANGUAGES)


def test_each_example_declares_its_language() -> None:
    """A block that begins with ``::`` has no language, so no test would run it."""
    marked = [
        f"{page.relative_to(ROOT)}: {line}"
        for page in PAGES
        for line in page.read_text(encoding="utf-8").splitlines()
        if line.endswith("::") and not line.lstrip().startswith("..")
    ]
    assert marked == []


@pytest.mark.parametrize("block", blocks("yaml"), ids=str)
def test_yaml_parses(block: Block) -> None:
    assert isinstance(yaml.safe_load(block.text), dict), str(block)


@pytest.mark.parametrize("block", blocks("toml"), ids=str)
def test_files_of_entries_can_be_read(block: Block, app: Celery, tmp_path: Path) -> None:
    file = tmp_path / "entries.toml"
    file.write_text(block.text, encoding="utf-8")
    content = read_entry_file(Schedule(app), str(file))
    assert all(item.entry for item in content.items)
    assert content.items


@pytest.mark.parametrize("block", blocks("json"), ids=str)
def test_json_parses(block: Block) -> None:
    assert json.loads(block.text), str(block)


API = "\n.. next page\n\n".join(
    page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs" / "api").glob("*.rst"))
)


def test_the_reference_has_every_public_name() -> None:
    assert [n for n in redbeat.__all__ if f"redbeat.{n}\n" not in API and n != "__version__"] == []
    sent = [name for name, value in vars(signals).items() if isinstance(value, Signal)]
    assert sent == re.findall(r"autodata:: redbeat\.signals\.(\w+)", API)
    classes = [value for value in vars(errors).values() if isinstance(value, type)]
    raised = {one.__name__ for one in classes if issubclass(one, errors.RedBeatError)}
    raised -= {"FieldError"}
    assert raised == {*re.findall(r"autoexception:: redbeat\.(\w+)", API)}


def documented_members(cls: type) -> set[str]:
    """Return the names of the members of a class that the reference documents."""
    _, _, text = API.partition(f".. autoclass:: redbeat.{cls.__name__}\n")
    listed = text.partition("\n.. ")[0].partition(":members:")[2]
    return {*re.findall(r"\w+", listed)} - {"automethod", "name", "default"}


def classes_in(annotation: object, module: str) -> set[type]:
    """Return the classes of this package that an annotation names, a text in a module."""
    names = [
        getattr(sys.modules[module], word, None) for word in re.findall(r"\w+", f"{annotation}")
    ]
    return {c for c in names if isinstance(c, type) and c.__module__.startswith("redbeat.")}


def returned_classes() -> set[type]:
    """Return the classes of what public methods return, and of the fields of these classes."""
    found: set[type] = set()
    todo = {RedBeatSchedulerEntry, redbeat.Schedule}
    for name in ("copy_prefix", "copy_untagged", "current_leader", "active_beats"):
        function = getattr(redbeat, name)
        todo |= classes_in(function.__annotations__["return"], function.__module__)
    while todo:
        cls = todo.pop()
        found.add(cls)
        for name in documented_members(cls):
            member = inspect.getattr_static(cls, name)
            function = getattr(member, "fget", None) or getattr(member, "__func__", member)
            todo |= classes_in(function.__annotations__["return"], function.__module__)
        if hasattr(cls, "__dataclass_fields__") or hasattr(cls, "_fields"):
            for annotation in cls.__annotations__.values():
                todo |= classes_in(
                    getattr(annotation, "__forward_arg__", annotation), cls.__module__
                )
        todo -= found
    return found


def test_every_class_that_a_method_returns_has_a_public_path() -> None:
    classes = returned_classes()
    assert {redbeat.Simulation, redbeat.ClockChange, redbeat.Failing, redbeat.Copied} <= classes
    assert {c for c in classes if getattr(redbeat, c.__name__, None) is not c} == set()
    assert [c for c in classes if f".. autoclass:: redbeat.{c.__name__}\n" not in API] == []


def test_the_reference_has_every_method_of_a_schedule() -> None:
    own = {name for name in vars(redbeat.Schedule) if not name.startswith("_")}
    internal = {"load", "load_in_steps", "past_load"}  # the chart of the dashboard
    assert own - internal == documented_members(redbeat.Schedule) & own


def page_text(name: str) -> str:
    """Return the text of a page of the manual, with single spaces instead of line breaks."""
    return " ".join((ROOT / "docs" / f"{name}.rst").read_text(encoding="utf-8").split())


def listed(text: str, begin: str, end: str) -> set[str]:
    """Return the literals between two texts, each of which occurs once."""
    _, after = text.split(begin)
    return {*re.findall(r"``([^`]+)``", after[: after.index(end)])}


def test_the_list_of_stored_types_is_complete() -> None:
    text = page_text("deployment/security")
    types = listed(text, "The decoder accepts these values of ``__type__``:", "and the tags of")
    assert types == {*BY_TAG} - {"lazy"}  # only beat_schedule has lazy arguments


def test_the_list_of_the_kinds_of_findings_is_complete() -> None:
    page = (ROOT / "docs" / "cli.rst").read_text(encoding="utf-8")
    repaired, reported = page.partition("\ndoctor\n---")[2].split("These it can only report")

    def kinds(text: str) -> list[str]:
        terms = re.findall(r"^``\w+``(?:, ``\w+``)*$", text, re.MULTILINE)
        return re.findall(r"\w+", " ".join(terms))

    assert sorted(kinds(repaired)) == sorted(REPAIRS)
    assert sorted(kinds(reported)) == sorted({*KINDS} - {*REPAIRS})


def test_a_busy_minute_is_that_of_the_code() -> None:
    factor = {5: "five"}[BUSY_FACTOR]
    what = f"at least {BUSY} entries are due in one minute, and {factor} times as many as"
    assert what in page_text("cli")


def test_the_list_of_options_that_are_read_in_the_zone_of_an_entry_is_complete() -> None:
    options = listed(page_text("cli"), "it's in the app's zone too. Only", "are in the")
    assert options == {f"--{name}" for name in READ_IN_ZONE}


def test_the_list_of_reserved_names_is_complete(app: Celery) -> None:
    conf = ensure_conf(app)
    prefix = conf.key_prefix
    reserved = {key for key in conf.reserved_keys if key.startswith(prefix)}
    names = listed(page_text("tasks"), "Names may contain any character.", "and the lock's name")
    assert {prefix + name for name in names} == reserved


def test_the_limits_are_those_of_the_code() -> None:
    text = page_text("deployment/security")
    note = f"{LONGEST_NOTE} characters ({MAX_NOTE} in the dashboard)"
    assert f"note of a pause; reason in the log - {note}" in text
    assert f"calendars of an entry - {MAX_CALENDARS} " in text
    assert f"a list of up to {MAX_CALENDARS} names" in page_text("policies")
    window = SETTINGS["redbeat_publish_window"].value
    assert window == 2 * turn.MOST_CHANGES
    assert (
        f"After a SIGKILL, at most {turn.MOST_CHANGES} runs are lost with ``at_most_once``. With "
        f"``at_least_once`` at most {window} are sent twice, or ``redbeat_publish_window`` if"
    ) in page_text("guarantees")


def test_the_page_of_guarantees_says_how_fast_a_beat_looks_for_what_it_was_not_told() -> None:
    text = page_text("guarantees")
    assert upkeep.INTERVAL == 5
    assert f"a beat looks at {upkeep.PAGE} disabled entries every five seconds" in text
    assert upkeep.SCANNED == 100
    assert "a hundred keys at a time" in text


def measured(name: str) -> dict[str, list[str]]:
    """Return the rows of the tables with these results in a page: title -> other cells."""
    page = "tested" if name == "faults-results" else "scale"
    text = taken(ROOT / "docs" / f"{page}.rst", name)
    lines = [line.strip() for line in text.splitlines() if line.startswith('   "')]
    return {title: cells for title, *cells in csv.reader(lines, skipinitialspace=True)}


#: Seconds to start a command, as the page says.
START = 0.6
MILLIONS = 4


def per_name(title: str) -> float:
    """Return the CPU time of a command per entry, with four million entries, in microseconds."""
    process, server = re.findall(r"[\d.]+", measured("scale-commands")[title][2])
    start = 0 if title.startswith("page") else START
    return (float(process) + float(server) - start) / MILLIONS


def test_the_times_on_the_page_about_scale_are_those_in_its_table() -> None:
    text = page_text("scale")
    assert f"with {START} s for imports" in text
    assert "a search by name 0.8 µs for each name" in text
    for title in ("page, search by name", "list --match 'tenant-0042:\\*'"):
        assert per_name(title) == pytest.approx(0.8, abs=0.05)
    assert "by state or task, 8 to 9 µs for each entry" in text
    for title in ("page, paused", "page, by task"):
        assert 7.5 <= per_name(title) < 9
    assert "take 30 to 110 µs for each entry" in text
    slow = [
        *map(per_name, ("list --state paused", "list --task proj.rare", "doctor", "export")),
        *map(per_name, ("import, nothing differs", "import, a new schedule")),
    ]
    assert 30 <= min(slow) <= max(slow) < 111


def test_the_time_to_plan_with_is_about_twice_the_measured_time() -> None:
    (cell,) = measured("scale-results")["time of a real beat per message, including publishing"]
    assert 500 / float(cell.removesuffix(" µs")) == pytest.approx(2, abs=0.4)
    assert "With 0.5 ms per message, about twice the time" in page_text("howto/spread-load")
    (of_redis,) = measured("scale-results")["CPU time of Redis per due entry"]
    assert 80 / float(of_redis.removesuffix(" µs")) == pytest.approx(2, abs=0.4)
    assert "``e`` = 0.5 ms of a beat and ``r`` = 80 µs of Redis" in page_text("scale")


def test_the_table_of_beats_and_masters_follows_from_the_formulas_above_it() -> None:
    """The page answered the same question twice, with other numbers."""
    rows = re.findall(r"\* - ([\d,]+) - (\d+) - (\d+)(?= )", page_text("scale"))
    assert len(rows) == 3
    for runs, *cells in rows:
        each = int(runs.replace(",", ""))
        beats, masters = math.ceil(each * 0.0005) + 1, math.ceil(each * 80e-6 / 0.5)
        assert [*map(int, cells)] == [beats, masters]


def test_the_page_about_peaks_says_which_minutes_doctor_reports() -> None:
    assert f"a minute in which at least {BUSY} entries are due" in page_text("howto/spread-load")


def test_the_page_about_scale_has_the_measured_bytes_per_entry() -> None:
    saved, ran = (
        measured("benchmarks-results")[f"memory of Redis per entry after {what}"][0]
        for what in ("save()", "a run")
    )
    sizes = f"entries times {saved.replace('B', 'bytes')}, or {ran.removesuffix(' B')} after a run"
    assert sizes in page_text("scale")


def test_the_help_of_a_note_names_the_commands_that_show_notes() -> None:
    help_text = pause.get_help(click.Context(pause)).partition("--note")[2].partition("--")[0]
    assert "'show'" in help_text
    assert "status" not in help_text


def test_the_manual_stores_solar_schedules() -> None:
    assert "solar" not in page_text("tasks")
    assert "``solar``" in page_text("schedules")


def test_every_page_is_in_one_part_of_the_manual() -> None:
    docs = ROOT / "docs"
    index = (docs / "index.rst").read_text(encoding="utf-8")
    parts = re.findall(r"\.\. toctree::\n((?: +.*\n|\n)+)", index)
    assert [re.findall(r":caption: (.*)", part)[0] for part in parts] == [
        "Tutorial",
        "How-to",
        "Deployment",
        "Migrate",
        "Reference",
        "Explanation",
    ]
    listed = [name for part in parts for name in re.findall(r"^   ([\w/-]+)$", part, re.MULTILINE)]
    api = (docs / "api" / "index.rst").read_text(encoding="utf-8").partition(".. toctree::")[2]
    listed += [f"api/{name}" for name in re.findall(r"^   (\w+)$", api, re.MULTILINE)]
    pages = {str(page.relative_to(docs).with_suffix("")) for page in docs.rglob("*.rst")}
    assert sorted(listed) == sorted(pages - {"index"})


def test_no_page_gives_advice_for_a_redis_that_is_too_old() -> None:
    versions = [
        (page.name, *map(int, version))
        for page in PAGES
        if page.name != "CHANGES.rst"
        for version in re.findall(r"Redis (\d+)\.(\d+)", page.read_text(encoding="utf-8"))
    ]
    assert [version for version in versions if version[1:] < (6, 2)] == []


def test_the_window_of_an_entry_is_not_described_by_its_first_and_last_run() -> None:
    """``start_time`` need not be the time of a run."""
    texts = [command.get_help(click.Context(command)) for command in (add, edit)]
    texts += [
        line
        for page in PAGES
        for line in page.read_text(encoding="utf-8").splitlines()
        if re.search(r"start_time|end_time|--start|--end", line)
    ]
    assert len(texts) > 10
    wrong = re.compile(r"\b(first|last)\s+run\b", re.IGNORECASE)
    assert [text for text in texts if wrong.search(text)] == []


#: Pages that have another beginning.
OTHER_BEGINNINGS = {
    *("README.rst", "CHANGES.rst", "docs/index.rst", "docs/changes.rst"),
}


def opening(page: Path) -> str:
    """Return the first paragraph of a page, which follows the title."""
    title, underline, blank, *lines = page.read_text(encoding="utf-8").split("\n")
    assert underline == len(title) * "="
    assert blank == ""
    return " ".join("\n".join(lines).partition("\n\n")[0].split())


def test_each_page_says_in_its_own_words_what_it_is_about() -> None:
    openings = {
        page: opening(page) for page in PAGES if str(page.relative_to(ROOT)) not in OTHER_BEGINNINGS
    }
    unclear = [text for text in openings.values() if not re.match(r"[A-Z`].{20,}[.:]$", text)]
    assert unclear == []
    begins = Counter(" ".join(text.split()[:3]) for text in openings.values())
    assert [begin for begin, pages in begins.items() if pages > 1] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_page_installs_version_2_from_the_package_index(page: Path) -> None:
    if "dev" in redbeat.__version__:
        # The way back to version 2 names that version.
        assert not re.search(
            r"pip install '?celery-redbeat(?!<3')", page.read_text(encoding="utf-8")
        )
        lines = [line for block in blocks_of(page) for line in block.text.splitlines()]
        assert [line for line in lines if re.match(r"\s*celery-redbeat\b(?!\s*@)", line)] == []
        version = f"celery_redbeat-{redbeat.__version__}-"
        assert [line for line in lines if ".whl" in line and version not in line] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_settings_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = {
        name.lower() for name in re.findall(r"(?i)(?<![\w./-])redbeat_[a-z][a-z_]*[a-z]", text)
    }
    spelt = {name.lower() for name in re.findall(r"CELERY_(REDBEAT_[A-Z_]+[A-Z])", text)}
    variables = {"redbeat_faults", "redbeat_fuzz", "redbeat_topology", "redbeat_screenshots"}
    variables |= {name.lower() for name in IN_DJANGO}
    variables |= {"redbeat_web_basic_auth", "redbeat_web_token", "redbeat_zone"}
    assert (named | spelt) - SETTINGS.keys() - ATTRIBUTES - METRICS - variables == set()
