"""Tests of `celery redbeat import --format django-celery-beat` with a real Django project."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from redbeat.cli.command import Exit
from tests.acceptance.processes import ROOT
from tests.cli.conftest import Run

SETTINGS = """
from pathlib import Path

HERE = Path(__file__).parent
SECRET_KEY = "x"
INSTALLED_APPS = ["django.contrib.contenttypes", "django_celery_beat"]
DATABASES = {
    "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": HERE / "one.sqlite3"},
    "other": {"ENGINE": "django.db.backends.sqlite3", "NAME": HERE / "other.sqlite3"},
    "empty": {"ENGINE": "django.db.backends.sqlite3", "NAME": HERE / "empty.sqlite3"},
}
USE_TZ = True
TIME_ZONE = "Europe/Paris"
"""

PROJECT = """
import os
from celery import Celery

app = Celery("shop", broker="memory://")
app.conf.redbeat_redis_url = os.environ["REDIS_URL"]
if os.environ["DJANGO_SETTINGS_MODULE"]:
    app.config_from_object("django.conf:settings", namespace="CELERY")
"""

#: A project's subclass of RedBeat's scheduler.
OWN_SCHEDULER = """
from django_celery_beat.models import PeriodicTask
from redbeat import RedBeatScheduler


class Scheduler(RedBeatScheduler):
    model = PeriodicTask
"""

FILL = """
import django
django.setup()

from datetime import datetime, timezone
from django.core.management import call_command
from django_celery_beat.models import *

for alias in ("default", "other"):
    call_command("migrate", database=alias, verbosity=0)

every = IntervalSchedule.objects.create(every=5, period="minutes")
cron = CrontabSchedule.objects.create(
    minute="*/5", hour="8-18", day_of_week="mon-fri", timezone="America/New_York")
sun = SolarSchedule.objects.create(event="sunset", latitude="48.86", longitude="2.35")
at = ClockedSchedule.objects.create(clocked_time=datetime(2031, 5, 6, 7, 8, tzinfo=timezone.utc))
PeriodicTask.objects.create(
    name="every", task="shop.sync", interval=every, args="[1]", kwargs='{"a": null}', queue="q",
    priority=3, expire_seconds=60)
PeriodicTask.objects.filter(name="every").update(
    last_run_at=datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=timezone.utc), total_run_count=7)
PeriodicTask.objects.create(name="cron", task="shop.sync", crontab=cron, enabled=False)
PeriodicTask.objects.create(name="sun", task="shop.lights", solar=sun)
PeriodicTask.objects.create(name="once", task="shop.launch", clocked=at, one_off=True)
there = IntervalSchedule.objects.using("other").create(every=1, period="hours")
PeriodicTask(name="there", task="shop.other", interval=there).save(using="other")
"""


class ProcessResult(NamedTuple):
    """The output and the exit code of a process."""

    code: int
    out: str
    err: str


class Shop:
    """A Django project with django-celery-beat and an SQLite database, and a Celery app."""

    def __init__(self, directory: Path, redis_url: str) -> None:
        self.directory = directory
        path = f"{directory}{os.pathsep}{ROOT}"
        settings = {"DJANGO_SETTINGS_MODULE": "shop_settings", "REDIS_URL": redis_url}
        self.env = {**os.environ, "PYTHONPATH": path, **settings}
        texts = {
            "shop_settings.py": SETTINGS,
            "shop.py": PROJECT,
            "fill.py": FILL,
            "own.py": OWN_SCHEDULER,
        }
        for name, text in texts.items():
            (directory / name).write_text(text, encoding="utf-8")

    def python(self, *arguments: str, **env: str) -> ProcessResult:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.directory,
            env={**self.env, **env},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return ProcessResult(done.returncode, done.stdout, done.stderr)

    def load(self, *options: str, **env: str) -> ProcessResult:
        command = ("-m", "celery", "-A", "shop", "redbeat", "import")
        return self.python(*command, "--format", "django-celery-beat", *options, **env)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a project whose tables contain rows."""
    shop = Shop(tmp_path_factory.mktemp("shop"), "")
    filled = shop.python("fill.py")
    assert filled.code == 0, filled.err
    return shop.directory


@pytest.fixture
def shop(made: Path, redis_url: str) -> Shop:
    return Shop(made, redis_url)


def stored(client: Any) -> dict[str, Any]:
    keys = [key for key in client.keys("redbeat:*") if not key.startswith("redbeat::")]
    found = {key: client.hgetall(key) for key in keys}
    for fields in found.values():
        state = json.loads(fields["beat_state"])
        assert state.pop("id")  # random, as the marks
        fields["beat_state"] = state.keys() - {"at"}  # the time of the import
    return found


def without_start_of_counting(found: dict[str, Any]) -> dict[str, Any]:
    """Remove the history of entries that never ran, and the times of overdue runs.

    They contain the time of the import.
    """
    return {
        key: {
            name: text for name, text in fields.items() if name != "meta" or key.endswith("every")
        }
        for key, fields in found.items()
    }


@pytest.mark.long
def test_an_import_from_the_database_equals_one_from_its_dump(
    shop: Shop, redis_client: Any
) -> None:
    ended = shop.load("--json")
    assert ended.code == 0, ended.err
    assert '"created": 4' in ended.out
    from_database = without_start_of_counting(stored(redis_client))
    assert len(from_database) == 4
    dump = shop.python("-m", "django", "dumpdata", "django_celery_beat", "-o", "beat.json")
    assert dump.code == 0, dump.err
    redis_client.flushall()
    assert shop.load("beat.json").code == 0
    assert without_start_of_counting(stored(redis_client)) == from_database


@pytest.mark.long
@pytest.mark.parametrize(
    "scheduler",
    [
        "own.Scheduler",
        "django",
        "django_celery_beat.schedulers:DatabaseScheduler",
    ],
)
def test_the_import_works_while_the_settings_name_the_old_scheduler(
    shop: Shop, redis_client: Any, scheduler: str
) -> None:
    """The manual gives this order: import first, then change the settings."""
    text = f"{SETTINGS}\nCELERY_BEAT_SCHEDULER = {scheduler!r}\n"
    (shop.directory / "old_settings.py").write_text(text, encoding="utf-8")
    ended = shop.load(DJANGO_SETTINGS_MODULE="old_settings")
    assert (ended.code, "4 created" in ended.err) == (0, True), ended.err
    assert len(stored(redis_client)) == 4


def test_the_imported_entries_are_those_of_the_database(shop: Shop, run: Run) -> None:
    assert shop.load().code == 0
    (cron,) = run("show", "cron", "--json").json
    assert (cron["enabled"], cron["policy"]["timezone"]) == (False, "America/New_York")
    (every,) = run("show", "every", "--json").json
    assert (every["args"], every["kwargs"], every["task"]) == ([1], {"a": None}, "shop.sync")
    assert every["last_run_at"] == "2026-01-02T03:04:05.678000+00:00"
    assert every["total_run_count"] == 7
    assert every["options"] == {"queue": "q", "priority": 3, "expires": 60}


@pytest.mark.long
def test_a_second_import_changes_nothing(shop: Shop) -> None:
    assert shop.load().code == 0
    again = shop.load("--json")
    assert (again.code, '"unchanged": 4' in again.out) == (0, True), again


@pytest.mark.long
def test_another_database(shop: Shop, redis_client: Any) -> None:
    assert shop.load("--database", "other").code == 0
    assert set(stored(redis_client)) == {"redbeat:there"}


@pytest.mark.long
def test_the_usual_database_by_the_option(shop: Shop, redis_client: Any) -> None:
    assert shop.load("--database").code == 0
    assert "redbeat:every" in stored(redis_client)


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "env", "problem"),
    [
        (["--database", "none"], {}, "database none: cannot be read: "),
        (["--database", "empty"], {}, "database empty: cannot be read: OperationalError: no such"),
        (
            [],
            {"DJANGO_SETTINGS_MODULE": ""},
            "define the environment variable DJANGO_SETTINGS_MODULE",
        ),
    ],
)
def test_a_database_that_cannot_be_read(
    shop: Shop, redis_client: Any, options: list[str], env: dict[str, str], problem: str
) -> None:
    ended = shop.load(*options, **env)
    assert ended.code == Exit.UNREADABLE
    assert problem in ended.err
    assert "Traceback" not in ended.err
    assert redis_client.keys("*") == []


@pytest.mark.long
def test_a_project_without_django_celery_beat_is_an_error(shop: Shop) -> None:
    text = SETTINGS.replace(', "django_celery_beat"', "")
    (shop.directory / "bare_settings.py").write_text(text, encoding="utf-8")
    ended = shop.load(DJANGO_SETTINGS_MODULE="bare_settings")
    assert ended.code == Exit.UNREADABLE
    assert "No installed app with label 'django_celery_beat'" in ended.err
    assert "needs django-celery-beat in INSTALLED_APPS" in ended.err


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (
            ["--database", "other", "--format", "crontab", "f"],
            "only works with --format django-celery-beat",
        ),
        (["--format", "django-celery-beat", "--database", "x", "f"], "without FILE"),
        ([], "Missing argument 'FILE'"),
        (["--format", "crontab"], "Missing argument 'FILE'"),
    ],
)
def test_a_contradictory_command_line_is_refused(
    run: Run, arguments: list[str], problem: str
) -> None:
    ran = run("import", *arguments)
    assert ran.code == 2
    assert problem in ran.err


def django_of(
    monkeypatch: pytest.MonkeyPatch, setup: Callable[[], None], rows: Sequence[Any] = ()
) -> None:
    """Let the import see a Django whose ``setup`` is this function, with rows in each table."""

    class UnreadableError(Exception):
        """The error of a database."""

    def order_by(label: str) -> list[Any]:
        if not rows:
            raise UnreadableError("no such table")
        return [{"model": label, **row} for row in rows]

    def get_model(label: str) -> Any:
        query = SimpleNamespace(order_by=lambda _field: order_by(label))
        return SimpleNamespace(_base_manager=SimpleNamespace(using=lambda _alias: query))

    apps = SimpleNamespace(get_model=get_model)
    modules = {
        "django": SimpleNamespace(setup=setup),
        "django.apps": SimpleNamespace(apps=apps),
        "django.core.serializers": SimpleNamespace(serialize=lambda _format, found: found),
    }
    monkeypatch.setattr("redbeat.transfer.django.import_module", modules.__getitem__)


def missing_app() -> None:
    raise LookupError("No installed app with label 'django_celery_beat'.")


def broken_settings() -> None:
    raise ZeroDivisionError("division by zero")


@pytest.mark.parametrize(
    ("setup", "problem"),
    [
        (missing_app, "LookupError: No installed app with label 'django_celery_beat'"),
        (broken_settings, "ZeroDivisionError: division by zero"),
        (int, "UnreadableError: no such table"),
    ],
)
def test_a_project_that_cannot_be_read_is_an_error(
    run: Run, monkeypatch: pytest.MonkeyPatch, setup: Callable[[], None], problem: str
) -> None:
    django_of(monkeypatch, setup)
    ran = run("import", "--format", "django-celery-beat")
    assert ran.code == Exit.UNREADABLE
    assert f"database default: cannot be read: {problem}" in ran.err


def test_a_host_without_django_is_an_error(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr("redbeat.transfer.django.import_module", refuse)
    ran = run("import", "--format", "django-celery-beat")
    assert (ran.code, "No module named 'django'" in ran.err) == (Exit.UNREADABLE, True), ran.err


def test_the_rows_of_a_database_are_read(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each table has the same rows: a schedule of each kind, and a task."""
    fields = {"every": 5, "period": "minutes", "name": "a", "task": "shop.sync", "interval": 1}
    django_of(monkeypatch, lambda: None, [{"pk": 1, "fields": fields}])
    ran = run("import", "--format", "django-celery-beat")
    assert (ran.code, "1 created" in ran.err) == (0, True), ran.err
    (entry,) = run("show", "a", "--json").json
    assert (entry["task"], entry["schedule_text"]) == ("shop.sync", "every 5 min")
