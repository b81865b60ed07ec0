"""Tests of the commands with a custom entry class."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery

from redbeat import RedBeatScheduler, RedBeatSchedulerEntry
from redbeat.cli.command import Exit, entry_class_of
from tests.cli.conftest import Run


class Owned(RedBeatSchedulerEntry):
    """An entry with an additional argument, and a `save()` without arguments as in RedBeat 2."""

    def __init__(self, *args: Any, owner: str = "nobody", **kwargs: Any) -> None:
        self.owner = owner
        super().__init__(*args, **kwargs)

    def definition(self) -> dict[str, Any]:
        """Return the definition with the additional argument."""
        return {**super().definition(), "owner": self.owner}

    def save(self) -> Owned:
        """Save the entry."""
        return super().save()


class OwnedScheduler(RedBeatScheduler):
    """A scheduler whose entry class is `Owned`."""

    Entry = Owned


@pytest.fixture
def owned(app: Celery) -> Celery:
    """Return an app whose scheduler is `OwnedScheduler`, with one stored entry."""
    app.conf.beat_scheduler = f"{__name__}:OwnedScheduler"
    Owned("mine", "t", 60, owner="ann", app=app).save()
    return app


def test_list_reads_entries_of_the_class(run: Run, owned: Celery) -> None:
    (line,) = run("list", "--json").json
    assert (line["name"], line["state"]) == ("mine", "scheduled")
    assert "mine" not in run("doctor").out
    assert owned


def test_an_edit_keeps_what_the_class_adds(run: Run, owned: Celery) -> None:
    assert run("edit", "mine", "--every", "30").code == 0
    entry = Owned.from_key("redbeat:mine", app=owned)
    assert (entry.owner, entry.schedule.run_every.total_seconds()) == ("ann", 30)


def test_add_creates_an_entry_of_the_class(run: Run, owned: Celery) -> None:
    assert run("add", "new", "t", "--every", "30").code == 0
    assert Owned.from_key("redbeat:new", app=owned).owner == "nobody"
    assert run("add", "mine", "t", "--every", "30").code == Exit.CONFLICT


@pytest.mark.parametrize(
    ("setting", "entry_class"),
    [
        ("redbeat.RedBeatScheduler", RedBeatSchedulerEntry),
        ("redbeat", RedBeatSchedulerEntry),
        ("celery.beat:PersistentScheduler", RedBeatSchedulerEntry),
        ("nowhere:Scheduler", RedBeatSchedulerEntry),
        (f"{__name__}.OwnedScheduler", Owned),
    ],
)
def test_the_class_comes_from_the_setting(app: Celery, setting: str, entry_class: type) -> None:
    app.conf.beat_scheduler = setting
    assert entry_class_of(app) is entry_class
