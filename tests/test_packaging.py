"""Tests of the installed package, and of what the README promises about it."""

from __future__ import annotations

import configparser
import re
import runpy
import sys
from collections.abc import Container, Iterable
from importlib.metadata import distribution, entry_points
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery.utils.imports import load_extension_class_names, symbol_by_name
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from redbeat.manual import MANUAL
from redbeat.schedulers import RedBeatScheduler

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.rst").read_text(encoding="utf-8")


def readme_command(marker: str) -> str:
    """Return the command of README.rst that follows a marker, found as `.ci/run` finds it."""
    found = re.search(rf"^\.\. {marker}\n(?:.*\n)*?   (python3 .*)$", README, re.MULTILINE)
    assert found is not None, f"README.rst has no command after '.. {marker}'"
    return found[1]


def test_the_distribution_has_its_name_and_version() -> None:
    metadata = distribution("celery-redbeat").metadata
    assert metadata["Name"] == "celery-redbeat"
    assert metadata["Version"] == "3.0.0.dev0"
    assert metadata["Requires-Python"] == ">=3.10"
    assert metadata["License-Expression"] == "Apache-2.0"


@pytest.mark.parametrize(
    "requirement", ["celery>=5.3", "redis>=5", "python-dateutil", "tenacity", "tzdata"]
)
def test_the_distribution_requires(requirement: str) -> None:
    required = distribution("celery-redbeat").requires or []
    assert any(line.startswith(requirement) for line in required)


def test_the_source_distribution_says_how_to_report_a_vulnerability() -> None:
    included = (ROOT / "MANIFEST.in").read_text(encoding="utf-8").split("\n", 1)[0].split()[1:]
    assert "SECURITY.md" in included
    assert [name for name in included if not (ROOT / name).is_file()] == []
    policy = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    assert "Report a vulnerability" in policy
    (page,) = re.findall(r"`(docs/\S+)`", policy)
    assert "Threat model" in (ROOT / page).read_text(encoding="utf-8")


def test_the_short_name_of_the_scheduler_is_its_entry_point() -> None:
    (found,) = entry_points(group="celery.beat_schedulers", name="redbeat")
    assert found.load() is RedBeatScheduler


@pytest.mark.parametrize(
    "name",
    [
        "redbeat",
        "redbeat.RedBeatScheduler",
        "redbeat.schedulers.RedBeatScheduler",
        "redbeat.schedulers:RedBeatScheduler",
    ],
)
def test_celery_finds_the_scheduler_as(name: str) -> None:
    aliases = dict(load_extension_class_names("celery.beat_schedulers"))
    assert symbol_by_name(name, aliases=aliases) is RedBeatScheduler


def test_the_package_is_marked_as_typed() -> None:
    assert files("redbeat").joinpath("py.typed").is_file()


def test_every_script_has_a_header() -> None:
    scripts = [path for path in files("redbeat").joinpath("lua").iterdir() if path.is_file()]
    assert scripts
    for script in scripts:
        assert script.name.endswith(".lua")
        text = script.read_text(encoding="utf-8")
        assert text.startswith("-- ")
        assert "KEYS" in text
        assert "-- Returns" in text


def test_every_script_part_has_a_header() -> None:
    lua = ROOT / "redbeat" / "lua"
    scripts = [path.read_text(encoding="utf-8").splitlines() for path in lua.glob("*.lua")]
    parts = list((lua / "parts").iterdir())
    assert parts
    for part in parts:
        text = part.read_text(encoding="utf-8")
        assert text.startswith("-- "), part.name
        # The lines of a part are joined into one line, without comments: of trailing ones, only
        # those after two spaces are recognised.
        code = re.sub(r"^ *--.*", "", text, flags=re.MULTILINE)
        assert not re.search(r"--", re.sub(r"  -- .*", "", code)), part.name
        assert any(f"-- include: {part.stem}" in lines for lines in scripts), part.name


def test_the_demo_command_needs_nothing_but_the_repository() -> None:
    command = readme_command("command-demo")
    assert command.startswith("python3 -m venv .venv && ")
    assert "[demo]" in command
    assert command.endswith(" examples/demo.py")
    assert (ROOT / "examples" / "demo.py").is_file()


def test_the_test_command_installs_what_the_tests_need() -> None:
    command = readme_command("command-tests")
    assert command.startswith("python3 -m venv .venv && ")
    assert "-r requirements.dev.txt" in command
    assert " -m pytest" in command
    assert "-e .[docs,tests]" in (ROOT / "requirements.dev.txt").read_text(encoding="utf-8")


def test_the_readme_links_to_files_that_exist() -> None:
    names = re.findall(r"(?:`[^`<]+\s<|image:: )(?!http)([^>\n]+)", README)
    assert {"docs/quickstart.rst", "docs/images/web-schedule.png", "LICENSE"} <= set(names)
    assert [name for name in names if not (ROOT / name.partition("#")[0]).is_file()] == []
    for file, label in re.findall(r"<(docs/[^>#]+)#([^>]+)>", README):
        text = (ROOT / file).read_text(encoding="utf-8")
        assert f"\n.. _{label}:\n" in text or f"\n{label.capitalize()}\n" in text, (file, label)


def test_the_links_of_the_readme_work_on_the_package_index(
    arguments_of_setup: dict[str, Any],
) -> None:
    text = arguments_of_setup["long_description"]
    targets = re.findall(r"(?:`[^`<]+\s<|image:: )([^>\n]+)", text)
    assert len(targets) > 10
    assert [target for target in targets if not target.startswith("https://")] == []
    assert MANUAL.format("web") in targets


def test_the_address_of_the_manual_is_in_one_place(arguments_of_setup: dict[str, Any]) -> None:
    assert arguments_of_setup["project_urls"]["Documentation"] == MANUAL.format("quickstart")
    sources = [*(ROOT / "redbeat").rglob("*.py"), *(ROOT / "redbeat").rglob("*.html")]
    start = MANUAL.partition("{}")[0]
    assert [file.name for file in sources if start in file.read_text("utf-8")] == ["manual.py"]
    texts = [file.read_text("utf-8") for file in sources]
    named = {
        page for text in texts for page in re.findall(r"MANUAL\.format\(['\"](.*?)['\"]", text)
    }
    assert named
    assert [page for page in named if not (ROOT / "docs" / f"{page}.rst").is_file()] == []


def test_the_readme_clones_the_repository_of_the_package(
    arguments_of_setup: dict[str, Any],
) -> None:
    assert f"   git clone {arguments_of_setup['url']}\n" in README


def test_the_figures_of_the_readme_are_those_measured() -> None:
    measured = (ROOT / "docs" / "scale.rst").read_text(encoding="utf-8")
    (found,) = re.findall(r"^In figures, (.*?)\n\n", README, re.MULTILINE | re.DOTALL)
    figures = " ".join(found.split())
    pattern = (
        r"([\d,]+) overdue entries leave in ([\d.]+) s, where celery-redbeat 2 takes ([\d.]+) s"
    )
    ((count, ours, theirs),) = re.findall(pattern, figures)
    assert f'"a real beat sends {count} due entries", "{ours} s", "{theirs} s"' in measured
    assert "docs/scale.rst" in figures
    assert "µs" not in README


def test_the_readme_has_the_versions_that_are_tested(arguments_of_setup: dict[str, Any]) -> None:
    (line,) = (line for line in README.splitlines() if line.startswith("Apache 2.0 · "))
    compatibility = (ROOT / "docs" / "compatibility.rst").read_text(encoding="utf-8")
    found = re.findall(r"(\w+) (\d+\.\d+) to (\d+\.\d+)", line)
    assert [name for name, *_ in found] == ["Python", "Celery", "Redis", "Valkey"]
    for name, *ends in found:
        (tested,) = re.findall(rf"   \* - {name}\n     - .*\n     - (.*)", compatibility)
        versions = re.findall(r"\d+\.\d+", tested)
        assert [versions[0], versions[-1]] == ends
    classifiers = " ".join(arguments_of_setup["classifiers"])
    versions = re.findall(r"Python :: (3\.\d+)", classifiers)
    assert [versions[0], versions[-1]] == [*found[0][1:]]
    assert arguments_of_setup["license_expression"] == "Apache-2.0"


def test_the_change_log_begins_with_this_version() -> None:
    text = (ROOT / "CHANGES.rst").read_text(encoding="utf-8")
    heading = re.search(r"^(\d\S*) ", text, re.MULTILINE)
    assert heading is not None
    assert heading[1] == distribution("celery-redbeat").version


# -- what is declared more than once -------------------------------------------------------------


@pytest.fixture
def arguments_of_setup(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The arguments of ``setup()`` in setup.py.

    The fixture runs setup.py, because the installed metadata may come from an earlier version.
    """
    arguments: dict[str, Any] = {}
    setuptools = SimpleNamespace(setup=arguments.update, find_packages=lambda **_: [])
    monkeypatch.setitem(sys.modules, "setuptools", setuptools)
    monkeypatch.setitem(sys.modules, "setuptools.command.sdist", SimpleNamespace(sdist=object))
    runpy.run_path(str(ROOT / "setup.py"))
    return arguments


@pytest.fixture
def declared(arguments_of_setup: dict[str, Any]) -> dict[str, list[Requirement]]:
    """The requirements in setup.py, keyed by extra. The key "" has the required packages."""
    arguments = arguments_of_setup
    by_extra = {"": arguments["install_requires"], **arguments["extras_require"]}
    return {extra: list(map(Requirement, lines)) for extra, lines in by_extra.items()}


def tox_deps(section: str, option: str = "deps") -> list[Requirement]:
    """Return the requirements in an option of tox.ini."""
    parser = configparser.RawConfigParser()
    parser.read(ROOT / "tox.ini", encoding="utf-8")
    return list(map(Requirement, parser[section][option].strip().splitlines()))


def names_of(requirements: Iterable[Requirement]) -> set[str]:
    """Return the normalized package names of the requirements."""
    return {canonicalize_name(each.name) for each in requirements}


def texts_of(requirements: Iterable[Requirement], but: Container[str]) -> set[str]:
    """Return the requirements as strings, except the packages named in ``but``."""
    return {str(each) for each in requirements if each.name not in but}


def lower_bound(requirement: Requirement) -> Version | None:
    """Return the lowest allowed version, or None if there is no lower bound."""
    bounds = [each.version for each in requirement.specifier if each.operator == ">="]
    return Version(bounds[0]) if bounds else None


#: Requirements of the extra "tests" that the section "testing" of tox.ini omits. The name of the
#: tox environment selects the Celery version, and only the coverage environment needs pytest-cov.
NOT_IN_TOX = {"celery", "pytest-cov"}

#: tox.ini has this instead of "celery[solar]", which would also install a Celery version.
ONLY_IN_TOX = {"ephem"}


def test_tox_installs_what_the_tests_need(declared: dict[str, list[Requirement]]) -> None:
    listed, wanted = tox_deps("testing"), declared["tests"]
    assert texts_of(listed, but=ONLY_IN_TOX) == texts_of(wanted, but=NOT_IN_TOX)
    assert names_of(listed) >= ONLY_IN_TOX
    assert names_of(wanted) >= NOT_IN_TOX


@pytest.mark.parametrize(
    ("section", "option"),
    [
        ("testing", "checkers"),
        ("testenv:lint", "deps"),
        ("testenv:types", "deps"),
        ("testenv:package", "deps"),
    ],
)
def test_tox_checks_with_what_development_needs(section: str, option: str) -> None:
    lines = (ROOT / "requirements.dev.txt").read_text(encoding="utf-8").splitlines()
    needed = {str(Requirement(line)) for line in lines if line and line[0] not in "#-"}
    assert texts_of(tox_deps(section, option), but=()) <= needed


#: Packages that the tox environment "lowest" limits for the reason given in tox.ini.
HELD_BACK = {"kombu"}


def test_tox_pins_the_lowest_versions_that_are_declared(
    declared: dict[str, list[Requirement]],
) -> None:
    wanted = [each for extra in ("", "tests") for each in declared[extra]]
    pinned = tox_deps("testenv:lowest")
    assert names_of(pinned) - HELD_BACK == names_of(wanted)
    for name in names_of(wanted):
        (pin,) = (each for each in pinned if canonicalize_name(each.name) == name)
        asked = [each for each in wanted if canonicalize_name(each.name) == name]
        assert pin.extras == set().union(*(each.extras for each in asked)), name
        bounds = [bound for each in asked if (bound := lower_bound(each))]
        exact = [each.version for each in pin.specifier if each.operator == "=="]
        assert list(map(Version, exact)) == sorted(bounds)[-1:], name


def test_the_tests_need_every_extra(declared: dict[str, list[Requirement]]) -> None:
    """Otherwise, no test would run with the lowest versions of all extras that users install."""
    of_tests = set(map(str, declared["tests"]))
    extras = declared.keys() - {"", "docs"}
    assert all(set(map(str, declared[extra])) <= of_tests for extra in extras)
