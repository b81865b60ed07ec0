"""What is installed, and what the README promises about it."""

from __future__ import annotations

import re
from importlib.metadata import distribution, entry_points
from importlib.resources import files
from pathlib import Path

import pytest
from celery.utils.imports import load_extension_class_names, symbol_by_name

import redbeat
from redbeat.schedulers import RedBeatScheduler

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.rst").read_text(encoding="utf-8")


def readme_command(marker: str) -> str:
    """Return the line of README.rst that follows a marker, as `.ci/run` finds it."""
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


def test_the_package_says_that_it_is_typed() -> None:
    assert files("redbeat").joinpath("py.typed").is_file()


def test_every_script_explains_itself() -> None:
    scripts = [path for path in files("redbeat").joinpath("lua").iterdir() if path.is_file()]
    assert scripts
    for script in scripts:
        assert script.name.endswith(".lua")
        text = script.read_text(encoding="utf-8")
        assert text.startswith("-- ")
        assert "KEYS" in text
        assert "-- Returns" in text


def test_what_the_package_exports_exists() -> None:
    assert {"RedBeatScheduler", "RedBeatSchedulerEntry", "RedBeatKeyExpiryError"} <= set(
        redbeat.__all__
    )
    assert all(hasattr(redbeat, name) for name in redbeat.__all__)


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
    assert "-e .[tests]" in (ROOT / "requirements.dev.txt").read_text(encoding="utf-8")


def test_the_readme_points_at_files_that_exist() -> None:
    names = re.findall(r"``([\w./]+\.(?:rst|py))``", README)
    assert "docs/configuration.rst" in names
    assert [name for name in names if not (ROOT / name).exists()] == ["proj.py"]


def test_the_licence_is_there_in_full() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text
    assert "END OF TERMS AND CONDITIONS" in text


def test_the_change_log_begins_with_this_version() -> None:
    text = (ROOT / "CHANGES.rst").read_text(encoding="utf-8")
    heading = re.search(r"^(\d\S*) ", text, re.MULTILINE)
    assert heading is not None
    assert heading[1] == distribution("celery-redbeat").version


def test_tox_pins_the_lowest_versions_that_are_declared() -> None:
    pattern = r'"([\w-]+)(?:\[\w+\])?>=([\d.]+)"'
    declared = {
        name: version.rstrip(".0")
        for name, version in re.findall(pattern, (ROOT / "setup.py").read_text())
    }
    assert {"celery", "redis", "tenacity", "pytest"} <= declared.keys()
    lowest = (ROOT / "tox.ini").read_text().split("[testenv:lowest]")[1].split("\n[")[0]
    pins = dict(re.findall(r"^    ([\w-]+)(?:\[[\w,]+\])?==([\d.]+)$", lowest, re.MULTILINE))
    assert {name: pin.rstrip(".0") for name, pin in pins.items()} == declared
