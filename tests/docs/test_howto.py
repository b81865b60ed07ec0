"""Tests that follow each how-to page from top to bottom, and check what its reader gets."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest
import redis
import yaml  # type: ignore[import-untyped]
from celery import Celery

from redbeat import RedBeatSchedulerEntry, Schedule
from redbeat.cli import COMMANDS
from redbeat.cli.show import list_
from redbeat.entries.decide import DISABLED, PARKED
from redbeat.entries.policy import FIELDS
from redbeat.entries.status import STATES
from redbeat.management.doctor import examine
from redbeat.schedulers import get_redis
from tests.docs.blocks import PAGES, ROOT, Block, block_named, blocks_of
from tests.docs.reader import Reader
from tests.docs.test_shell import NOT_RUN, PROJECT

#: A page has up to ten commands, each in its own process.
pytestmark = pytest.mark.timeout(600)

HOWTO = ROOT / "docs" / "howto"
FILES = ROOT / "docs" / "files.rst"
FRAMEWORKS_PAGE = HOWTO / "web-frameworks.rst"

#: Beginnings of commands that are not run with their page, and the reasons.
SERVERS = {
    "celery -A mysite worker": "it does not end; other tests start workers and beats",
    "flask --app": "it does not end; a test sends requests to the application",
    "uvicorn": "it does not end; a test sends requests to the application",
}


def command_pages() -> list[str]:
    """Return the pages with commands, which a reader follows from top to bottom."""
    found = [page for page in PAGES if page.parent == HOWTO]
    return [page.stem for page in found if any(map(is_run, blocks_of(page)))]


def is_run(block: Block) -> bool:
    """Return whether a block is a shell example that ends, and needs nothing that is not here."""
    return block.language == "sh" and not block.text.startswith((*NOT_RUN, *SERVERS))


def page_of(name: str) -> Path:
    """Return the page with this name."""
    return FILES if name == FILES.stem else HOWTO / f"{name}.rst"


def save_files(reader: Reader, name: str) -> None:
    """Save the files of a page in the directory of the reader."""
    reader.save("proj.py", PROJECT)
    for block in blocks_of(page_of(name)):
        if block.caption:
            reader.save(block.caption, block.text)


def follow(reader: Reader, name: str) -> None:
    """Save the files of a page, run its Python examples as one program, then its commands."""
    save_files(reader, name)
    page = blocks_of(page_of(name))
    programs = [block.text for block in page if block.language == "python" and not block.caption]
    if programs:
        reader.python("\n".join(["from proj import app", *programs]))
    for block in filter(is_run, page):
        reader.shell(block.text)


@pytest.mark.long
@pytest.mark.parametrize("name", sorted({*command_pages()} - {"web-frameworks", "troubleshooting"}))
def test_a_reader_can_follow_the_page(name: str, reader: Reader) -> None:
    follow(reader, name)


@pytest.mark.long
def test_the_commands_resume_what_they_paused(reader: Reader, app: Celery) -> None:
    for name in ("running", "old"):
        RedBeatSchedulerEntry(name, "proj.report", 3600, app=app).save()
    schedule = Schedule(app)
    schedule["old"].pause("another reason")
    reader.save("proj.py", PROJECT)
    (commands,) = filter(is_run, blocks_of(HOWTO / "pause-everything.rst"))
    pause, resume = commands.text.split("\n\n")
    reader.shell(pause)
    assert [record.state for record in schedule.records()] == ["paused", "paused"]
    reader.shell(resume)
    assert {entry.name: entry.enabled for entry in schedule.values()} == {
        "running": True,
        "old": False,
    }


@pytest.mark.long
def test_the_commands_find_out_why_an_entry_does_not_run(reader: Reader, app: Celery) -> None:
    nightly = RedBeatSchedulerEntry("nightly", "proj.report", 3600, app=app).save()
    nightly.pause("too expensive")
    reader.save("proj.py", PROJECT)
    (commands,) = filter(is_run, blocks_of(HOWTO / "troubleshooting.rst"))
    # No beat is running, so ``status`` and ``doctor`` exit with 1.
    status, *others, doctor = commands.text.splitlines()
    for check in (status, doctor):
        assert "no beat leads" in reader.shell(f"! {check}")
    assert "too expensive" in reader.shell("\n".join(others))


@pytest.mark.long
def test_the_pipeline_applies_a_change(reader: Reader, redis_client: redis.Redis) -> None:
    follow(reader, FILES.stem)
    definition = json.loads(str(redis_client.hget("redbeat:reminders", "definition")))
    assert definition["schedule"]["every"] == 600


def test_a_pull_request_only_plans_a_change() -> None:
    (text,) = (block.text for block in blocks_of(FILES) if block.language == "yaml")
    workflow = yaml.safe_load(text)
    triggers = workflow[True]  # YAML 1.1 reads the key "on" as true
    assert triggers["pull_request"]["paths"] == triggers["push"]["paths"] == ["schedule.toml"]
    last = {name: job["steps"][-1]["run"] for name, job in workflow["jobs"].items()}
    assert last == {
        "plan": "celery -A proj redbeat plan schedule.toml",
        "apply": "celery -A proj redbeat apply schedule.toml --yes",
    }
    assert {name: job["if"] for name, job in workflow["jobs"].items()} == {
        "plan": "github.event_name == 'pull_request'",
        "apply": "github.event_name == 'push'",
    }
    assert "apply" not in str(workflow["jobs"]["plan"])


def test_the_page_has_a_command_for_each_action_of_the_admin() -> None:
    page = (ROOT / "docs" / "from-django-celery-beat.rst").read_text(encoding="utf-8")
    table = page.partition("Admin of django-celery-beat\n")[2].partition("\n\n")[0]
    rows = re.findall(r"   \* - (.+)\n     - (.+)", table)
    named = [re.findall(r"``([^`]+)``", cell) for _, cell in rows]
    assert len(rows) == 6
    assert all(named)
    commands = {text.split()[0] for texts in named for text in texts if not text.startswith("--")}
    assert commands <= {*COMMANDS}
    options = {text.split()[-1] for texts in named for text in texts if "--" in text}
    assert options <= {name for param in list_.params for name in param.opts}


def test_each_answer_to_a_frequent_question_has_a_link() -> None:
    page = (HOWTO / "troubleshooting.rst").read_text(encoding="utf-8")
    faq = page.partition("FAQ\n---\n\n")[2].partition("\n\n")[0]
    answers = dict(re.findall(r"^(\w.+\?)\n((?: {3}.+(?:\n|$))+)", faq, re.MULTILINE))
    assert len(answers) >= 10
    assert len(answers) == faq.count("?\n")
    without = [question for question, answer in answers.items() if ".rst" not in answer]
    assert without == ["How do I delete the whole schedule?"]  # the answer is a command


def test_every_server_is_in_a_page() -> None:
    texts = [b.text for page in PAGES if page.parent == HOWTO for b in blocks_of(page)]
    assert [s for s in SERVERS if not any(text.startswith(s) for text in texts)] == []


# -- frameworks ----------------------------------------------------------------------------------

DJANGO = """
import os

import django
from django.conf import settings

os.environ["DJANGO_SETTINGS_MODULE"] = "mysite.settings"
django.setup()

from django.core.management import call_command
from django.db import transaction
from redbeat import Schedule
from mysite.celery import app
from reports.models import Report

schedule = Schedule(app)
assert app.conf.timezone == "Europe/Paris"
with transaction.atomic():
    report = Report.objects.create(title="sales")
    assert f"report-{report.pk}" not in schedule
assert schedule[f"report-{report.pk}"].args == [report.pk]
try:
    with transaction.atomic():
        lost = Report.objects.create(title="rolled back")
        raise KeyError
except KeyError:
    assert f"report-{lost.pk}" not in schedule
report.seconds = 60
report.save()
assert schedule[f"report-{report.pk}"].schedule.seconds == 60
Report.objects.bulk_create([Report(title="bulk")])
(bulk,) = Report.objects.filter(title="bulk")
call_command("sync_reports")
assert {*schedule.keys()} == {f"report-{report.pk}", f"report-{bulk.pk}"}
Report.objects.filter(pk=bulk.pk).delete()
report.delete()
assert [*schedule.keys()] == [f"report-{bulk.pk}"]
call_command("sync_reports")
assert len(schedule) == 0

from celery import Celery
from django.contrib.auth.models import Permission, User
from django.test import Client

report = Report.objects.create(title="sales")
ann = User.objects.create_user("ann", is_staff=True)
browser = Client(SERVER_NAME="localhost")
browser.force_login(ann)
pause = {"path": f"/admin/redbeat/api/entry/pause?name=report-{report.pk}",
    "data": "{}", "content_type": "application/json"}
answers = []
for right in (None, "view_report", "change_report"):
    if right:
        ann.user_permissions.add(Permission.objects.get(codename=right))
    linked = 'href="/admin/redbeat/"' in browser.get("/admin/").text
    answers.append((linked, browser.get("/admin/redbeat/").status_code,
        browser.post(**pause).status_code))
assert answers == [(False, 403, 403), (True, 200, 403), (True, 200, 200)], answers
assert not schedule[f"report-{report.pk}"].enabled

del settings.CELERY_TIMEZONE
unset = Celery("unset", set_as_current=False)
unset.config_from_object("django.conf:settings", namespace="CELERY")
assert unset.conf.timezone == settings.TIME_ZONE == "UTC"
print("done")
"""

FLASK = """
from web import app, schedule

client = app.test_client()
assert client.put("/reminders/tea", json={"every": 60, "text": "tea"}).status_code == 204
assert client.put("/reminders/bad", json={"every": 1e12, "text": "tea"}).status_code == 400
assert client.get("/reminders").json == ["reminder-tea"]
assert client.delete("/reminders/tea").status_code == 204
assert client.delete("/reminders/tea").status_code == 404
assert len(schedule) == 0
print("done")
"""

FASTAPI = """
from fastapi.testclient import TestClient
from api import app, schedule

client = TestClient(app)
body = {"url": "https://example.com", "every": 60}
assert client.put("/polls/one", json=body).status_code == 204
assert client.put("/polls/bad", json={**body, "every": 1e12}).status_code == 400
assert client.get("/polls").json() == ["poll-one"]
assert client.post("/polls/one/run").json()["task_id"]
assert client.post("/polls/two/run").status_code == 404
assert client.delete("/polls/one").status_code == 204
assert client.delete("/polls/one").status_code == 404
assert len(schedule) == 0
print("done")
"""


#: The beginnings of the commands that end, for each framework.
FRAMEWORKS = {"django": "touch reports", "flask": "celery -A web.celery_app redbeat"}


@pytest.mark.parametrize(
    ("name", "program"),
    [
        ("flask", FLASK),
        pytest.param("fastapi", FASTAPI, marks=pytest.mark.long),
        pytest.param("django", DJANGO, marks=pytest.mark.long),
    ],
)
def test_the_application_of_the_page_works(name: str, program: str, reader: Reader) -> None:
    start_django_project(reader) if name == "django" else save_files(reader, "web-frameworks")
    for block in filter(is_run, blocks_of(FRAMEWORKS_PAGE)):
        if block.text.startswith(FRAMEWORKS.get(name, "-")):
            reader.shell(block.text)
    assert reader.python(program).endswith("done\n")


def test_each_command_of_the_page_about_frameworks_is_run() -> None:
    texts = [block.text for block in filter(is_run, blocks_of(FRAMEWORKS_PAGE))]
    assert len(texts) == len(FRAMEWORKS)
    assert all(text.startswith((*FRAMEWORKS.values(),)) for text in texts)


def start_django_project(reader: Reader) -> None:
    """Make a project as Django's users do, and put the page's files and settings into it."""
    reader.shell("django-admin startproject mysite . && python manage.py startapp reports")
    reader.shell("mkdir -p reports/management/commands")
    settings = reader.directory / "mysite" / "settings.py"
    for block in blocks_of(FRAMEWORKS_PAGE):
        if block.caption == "mysite/settings.py":
            reader.save(block.caption, f"{settings.read_text()}\n{block.text}")
        elif block.caption:
            reader.save(block.caption, block.text)


@pytest.mark.long
def test_a_beat_warns_of_what_a_django_namespace_hides(reader: Reader) -> None:
    start_django_project(reader)
    settings = reader.directory / "mysite" / "settings.py"
    misspelt = "BEAT_SCHEDULE = {}\nCELERY_REBEAT_REDIS_URL = 'redis://x'\n"
    settings.write_text(f"{settings.read_text()}\n{misspelt}")
    warnings = block_named(FRAMEWORKS_PAGE, "warnings").splitlines()
    beat = reader.start("celery -A mysite beat --loglevel info")
    beat.wait_for("beat: Starting...")
    for warning in warnings:
        beat.wait_for(warning)
    found = reader.shell("celery -A mysite redbeat doctor --json || true")
    assert all(name in found for name in ("BEAT_SCHEDULE", "CELERY_REBEAT_REDIS_URL"))


# -- troubleshooting -----------------------------------------------------------------------------


def messages() -> list[str]:
    """Return the string constants of the package; each value in them is replaced by ``…``."""
    found = []
    for file in sorted((ROOT / "redbeat").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(re.sub(r"%[-\d.]*[a-z]", "…", node.value))
            elif isinstance(node, ast.JoinedStr):
                parts = (p.value if isinstance(p, ast.Constant) else "…" for p in node.values)
                found.append("".join(map(str, parts)))
    return found


def error_texts() -> list[str]:
    """Return the texts of errors in the tables of the page about troubleshooting."""
    page = (HOWTO / "troubleshooting.rst").read_text(encoding="utf-8")
    _, tables = page.split("What a line in the log means\n")
    rows = re.findall(r"^   \* - ((?:\| )?``.+(?:\n       \| .+)*)$", tables, re.MULTILINE)
    return [text for row in rows for text in re.findall(r"``([^`]+)``", row)]


def pattern_of(text: str) -> re.Pattern[str]:
    """Return what finds a text of the page, which writes ``...`` in place of values."""
    return re.compile(".+".join(map(re.escape, text.split("..."))), re.DOTALL)


def test_redbeat_has_each_error_text() -> None:
    found = messages()
    texts = error_texts()
    assert [text for text in texts if not any(map(pattern_of(text).search, found))] == []


def test_the_page_has_many_error_texts() -> None:
    assert len(error_texts()) > 70


def symptoms() -> list[str]:
    """Return the literals in the first column of the tables of symptoms."""
    page = (HOWTO / "troubleshooting.rst").read_text(encoding="utf-8")
    tables = page.partition("What a line in the log means\n")[0]
    cells = re.findall(r"^   \* - (.+)$", tables, re.MULTILINE)
    return [text for cell in cells for text in re.findall(r"``([^`]+)``", cell)]


def test_redbeat_shows_each_symptom() -> None:
    foreign = {"Received unregistered task"}  # of Celery
    parts = {
        "no worker that answers reads the queue": "no worker that answers",
        "No entries under the prefix": "under the prefix",
        "missed:3": "missed:",
        "failed:...": "failed:",
    }
    texts = [parts.get(text, text).partition("'")[0] for text in symptoms()]
    found = "\n".join([*messages(), *STATES])
    assert len(texts) > 12
    assert [text for text in texts if text not in foreign and text not in found] == []
    assert {*texts} >= {*STATES} - {"running"}


def test_what_the_page_says_of_an_entry_without_runs(app: Celery) -> None:
    """An empty history doesn't mean that the entry isn't due: perhaps no beat sends it."""
    schedule = Schedule(app)
    later = RedBeatSchedulerEntry("later", "proj.report", 3600, app=app).save()
    due = RedBeatSchedulerEntry("due", "proj.report", 3600, app=app).save()
    due.last_run_at = None
    due.save()
    assert {entry.status.state for entry in (later, due)} == {"scheduled"}
    assert later.history == due.history == []
    status = schedule.status()
    assert later.due_at > status.now
    assert status.due_now == 1


def test_what_the_page_says_doctor_does_not_see(app: Celery, redis_client: redis.Redis) -> None:
    RedBeatSchedulerEntry("mine", "celery.backend_cleanup", 60, app=app).save()
    redis_client.rename("redbeat:mine", "rebdeat:mine")
    redis_client.rename("redbeat::schedule", "rebdeat::schedule")
    assert [found.kind for found in examine(Schedule(app))] == ["beats"]


def test_the_scores_on_the_page_about_own_code_are_those_of_the_code(app: Celery) -> None:
    page = " ".join((HOWTO / "by-hand.rst").read_text(encoding="utf-8").split())
    assert f"{PARKED:g} is the score of a finished entry, {DISABLED:g} that of a disabled" in page
    disabled = RedBeatSchedulerEntry("off", "t", 60, enabled=False, app=app).save()
    assert get_redis(app).zscore("redbeat::schedule", disabled.key) == disabled.score == DISABLED


def test_the_page_about_own_code_names_fields_of_entries() -> None:
    page = (HOWTO / "by-hand.rst").read_text(encoding="utf-8")
    table = page.partition("What you know from APScheduler\n")[2]
    cells = re.findall(r"^     - (.+)$", table, re.MULTILINE)
    fields = {name for cell in cells for name in re.findall(r"``(\w+)(?:=\S+)?``", cell)}
    assert fields == {
        *("jitter", "overlap", "coalesce", "catch_up_limit", "misfire_grace_time"),
        *("start_time", "end_time"),
    }
    assert fields <= {*FIELDS}


def logged() -> list[str]:
    """Return the warnings and errors that a beat logs; each value in them is replaced by ``…``."""
    found = []
    places = ("redbeat/beat/*.py", "redbeat/storage/*.py", "redbeat/schedulers.py")
    for file in sorted(file for place in places for file in ROOT.glob(place)):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if node.func.attr in ("warning", "error", "exception") and node.args:
                (text, *_) = node.args
                if isinstance(text, ast.Constant) and isinstance(text.value, str):
                    found.append(re.sub(r"%[-\d.]*[a-z]", "…", text.value))
    return found


def test_the_page_has_each_warning_of_a_beat() -> None:
    patterns = [*map(pattern_of, error_texts())]
    logs = [message for message in logged() if message.strip("…: ")]
    assert len(logs) > 40
    assert [message for message in logs if not any(p.search(message) for p in patterns)] == []
