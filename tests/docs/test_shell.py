"""Tests that run every shell example of the manual in a project, except those in `NOT_RUN`."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import redis

from tests.acceptance.processes import Process
from tests.docs.blocks import Block, blocks
from tests.docs.reader import Reader

#: A page has up to twenty commands, each in its own process.
pytestmark = pytest.mark.timeout(600)

#: Beginnings of examples that are not run here, and the reasons.
NOT_RUN = {
    "python3 -m venv .venv": ".ci/run runs both, as they are in the README",
    "pip install": ".ci/check_package.py installs the wheel in an empty environment",
    "pip wheel": ".ci/check_package.py builds the wheel, and installs it",
    "celery -A proj worker": "test_home.py starts it",
    "git clone": "it needs a network; .ci/check_package.py installs the wheel",
    "python add.py": "test_home.py saves the file and runs it",
    "celery -A proj redbeat edit greeting": "test_home.py",
    "celery -A proj redbeat add greet-": "test_home.py",
    "redis-cli HSET redbeat:greet-": "test_home.py",
    "celery -A proj redbeat list\ncelery -A proj redbeat upcoming": "test_home.py",
    "celery -A proj redbeat pause greet-often": "test_home.py",
    "celery --config exampleconf": "tests/acceptance runs this configuration",
    "python -m benchmarks": "minutes; tests/test_benchmarks.py runs it with --quick",
    "apt-get install": "it changes the machine; .ci/run does it",
    ".venv/bin/pip install pre-commit": "it changes the clone; test_deploy_files.py reads the file",
    ".venv/bin/python -m pytest tests/faults --faults full": "two hours; .ci/long does a part",
    ".venv/bin/python -m tests.simulation": "minutes each; tests/simulation runs them",
    ".venv/bin/python -m tests.fuzz": "half an hour; .ci/long does a part",
    ".venv/bin/python -m tests.wild": "five minutes; .ci/long runs both",
    "useradd": "it changes the machine; test_deploy_files.py checks the unit",
    "docker build": "it needs Docker; test_deploy_files.py checks the Dockerfile",
    "docker compose": "it needs Docker; test_production.py runs the commands of the file",
    "kubectl": "it needs a cluster; test_deploy_files.py checks the manifest",
    "python manage.py dumpdata": "it needs a Django project; tests/cli has what it writes",
    "celery -A proj redbeat exporter": "it does not end; tests/metrics/test_exporter.py scrapes it",
    "celery -A proj redbeat web": "it does not end; tests/web/test_serving.py starts it",
    "redis-cli ACL SETUSER redbeat": "tests/security/test_acl.py takes it from the page",
}

PROJECT = """
from celery import Celery

app = Celery("proj", broker="redis://localhost:6379/0")
app.conf.beat_schedule = {"nightly": {"task": "proj.report", "schedule": 3600.0}}


@app.task
def report(*args, **kwargs): ...
"""

FIXTURE = [
    {
        "model": "django_celery_beat.intervalschedule",
        "pk": 1,
        "fields": {"every": 10, "period": "seconds"},
    },
    {
        "model": "django_celery_beat.periodictask",
        "pk": 1,
        "fields": {"name": "poll", "task": "proj.poll", "interval": 1, "args": "[]"},
    },
]
DEBUGGING = ("beat", "--loglevel", "debug")
ORPHAN = {
    "model": "django_celery_beat.periodictask",
    "pk": 4,
    "fields": {"name": "orphan", "task": "proj.poll", "interval": 7, "args": "[]"},
}

#: Beginnings of the paths of pages that test_howto.py follows.
FOLLOWED = ("docs/howto/", "docs/files.rst")

#: Pages with many commands, which only the long run tests.
LONG = {
    f"docs/{name}.rst"
    for name in ("switching", "from-redbeat-2", "from-django-celery-beat", "languages", "scale")
}


def reason(block: Block) -> str:
    """Return why an example is not run, or an empty string."""
    return next((why for start, why in NOT_RUN.items() if block.text.startswith(start)), "")


def runnable() -> dict[str, list[Block]]:
    """Return the shell examples that are run, by page."""
    found: dict[str, list[Block]] = {}
    for block in blocks("sh"):
        if not reason(block) and not block.page.startswith(FOLLOWED):
            found.setdefault(block.page, []).append(block)
    return found


def test_no_example_needs_the_tools_of_gnu() -> None:
    """``xargs`` on macOS has no ``-d``, and its ``sed -i`` takes the next argument as a suffix."""
    gnu = re.compile(r"xargs (?:-\S+ )*-d|sed -i |date -d|grep -\w*P|readlink -f")
    assert [str(block) for block in blocks("sh") if gnu.search(block.text)] == []


def test_every_reason_belongs_to_an_example() -> None:
    texts = [block.text for block in blocks("sh")]
    assert [s for s in NOT_RUN if not any(text.startswith(s) for text in texts)] == []


@pytest.fixture(scope="module")
def left_by_beat(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return the schedule files that Celery's own beat writes."""
    directory = tmp_path_factory.mktemp("own")
    (directory / "proj.py").write_text(PROJECT)
    beat = Process(directory, "beat", ["-A", "proj", "-b", "memory://", *DEBUGGING], {})
    try:
        # The beat has read the schedule; it writes the files when it stops.
        beat.wait_for("beat: Ticking")
        assert beat.stop() == 0
    finally:
        beat.end()
    left = list(directory.glob("celerybeat-schedule*"))
    assert left
    return left


@pytest.fixture
def prepared(reader: Reader, left_by_beat: list[Path]) -> Reader:
    """Return a reader with a project, files of Celery's own beat, and a dump of Django's tables."""
    reader.save("proj.py", PROJECT)
    reader.save("beat.json", json.dumps(FIXTURE))
    for file in left_by_beat:
        shutil.copy(file, reader.directory)
    return reader


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.long] if page in LONG else []) for page in runnable()],
)
def test_the_commands_of_a_page_run(page: str, prepared: Reader) -> None:
    for block in runnable()[page]:
        prepared.shell(block.text)


@pytest.mark.long
def test_a_switch_from_another_scheduler_imports_its_entries(
    prepared: Reader, redis_client: redis.Redis
) -> None:
    """This test checks the result of the commands; another test checks that they succeed."""
    pages = (runnable()[f"docs/{name}.rst"] for name in ("switching", "from-django-celery-beat"))
    commands = "\n".join(block.text for page in pages for block in page)
    for kind, name in (("celery-shelve", "nightly"), ("django-celery-beat", "poll")):
        (line,) = (
            line
            for line in commands.splitlines()
            if f"--format {kind}" in line and "--dry-run" not in line
        )
        assert ": 0 created" not in prepared.shell(line)
        assert redis_client.hget(f"redbeat:{name}", "definition")
    assert redis_client.smembers("redbeat::statics") >= {"nightly"}  # Celery adds another entry
