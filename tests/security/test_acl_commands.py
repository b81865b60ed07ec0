"""Tests that the users of docs/deployment/acl.rst can run every command and serve every page."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from celery.platforms import EX_UNAVAILABLE

from redbeat.cli import COMMANDS
from redbeat.errors import RedBeatError
from redbeat.management.schedule import Schedule
from redbeat.schedulers import RedBeatScheduler
from redbeat.storage.checks import MISSING_RIGHT
from redbeat.web.auth import Access
from redbeat.web.site import create_app
from tests.acceptance.processes import Project
from tests.cli.commands import CommandResult, run_command
from tests.deployments import SENDER, USER, acl_rules
from tests.metrics.scrapes import Target
from tests.security.scenario import definition, overdue
from tests.servers import RedisServer, free_port
from tests.waiting import wait_until
from tests.web.conftest import Browser

NAME = "new"

#: The content of the file ``PLAN``.
PLAN = '{"managed_by": "tests", "entries": {"planned": {"task": "proj.task", "every": 60}}}'

#: For each command, the command lines to run, in this order. ``FILE`` and ``PLAN`` are
#: paths of files.
LINES: dict[str, list[str]] = {
    "add": [f"add {NAME} proj.task --every 60", "add other proj.task --cron '*/5 * * * *'"],
    "edit": [f"edit {NAME} --every 120"],
    "pause": [f"pause {NAME} --note x", "pause --match o* --yes"],
    "resume": [f"resume {NAME}", "resume --match o* --yes"],
    "trigger": [f"trigger {NAME}"],
    "list": ["list", "list --sort name --limit 1", "list --static", "list --due-before 2999-01-01"],
    "show": [f"show {NAME}"],
    "history": [f"history {NAME}"],
    "upcoming": ["upcoming", f"upcoming {NAME}"],
    "simulate": [f"simulate {NAME} --from 2027-01-01 --to 2027-01-02 --every 600"],
    "backfill": [
        f"backfill {NAME} --from 2026-01-01 --to 2026-01-02",
        f"backfill {NAME}",
        f"backfill {NAME} --cancel",
    ],
    "status": ["status"],
    "doctor": ["doctor", "doctor --fix"],
    "export": ["export --history FILE", "export"],
    "import": ["import FILE --on-conflict replace --prune", "import FILE --dry-run"],
    "plan": ["plan PLAN"],
    "apply": ["apply PLAN --yes", "apply PLAN --dry-run"],
    "calendar": [
        "calendar de --day 2026-12-25",
        "calendar fr --day 2026-07-14",
        "calendar fr --delete",
    ],
    "calendars": ["calendars"],
    "migrate-prefix": ["migrate-prefix --delete redbeat: moved:", "migrate-prefix moved: redbeat:"],
    "shard": ["shard 4 --dry-run", "shard 1"],
    "delete": [f"delete {NAME} --yes", "delete --match o* --yes"],
    "exporter": [],  # test_the_servers runs these two
    "web": [],
}

#: The number of shards in the tests with shards.
SHARDS = 4

#: Commands whose exit code reports the state of the schedule.
MAY_EXIT_WITH_1 = {"status", "doctor"}


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    """Yield a separate server, because ACL users and the ACL log belong to the whole server."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def admin(server: RedisServer) -> Iterator[Any]:
    """Yield an admin client of an empty server on which both users of the manual exist."""
    with redis.Redis.from_url(server.url, decode_responses=True) as admin:
        admin.flushall()
        for name, rules in ((USER, acl_rules()), (SENDER, acl_rules(1))):
            admin.acl_deluser(name)
            admin.execute_command("ACL", "SETUSER", name, *rules)
        admin.acl_log_reset()
        yield admin


def grant(admin: Any, *rules: str, user: str = USER) -> None:
    """Change the rights of a user."""
    admin.execute_command("ACL", "SETUSER", user, *rules)


def settings(server: RedisServer, user: str = USER) -> dict[str, Any]:
    """Return the settings of an app that connects as a user of the manual."""
    return {"redbeat_redis_url": f"redis://{user}:PASSWORD@127.0.0.1:{server.port}/0"}


@pytest.fixture
def user(request: pytest.FixtureRequest) -> str:
    """Return the user of ``app``: the first one, unless a test has both users as parameters."""
    return str(getattr(request, "param", USER))


#: Runs a test as each user of the manual.
both_users = pytest.mark.parametrize("user", [USER, SENDER], indirect=True)

#: The same for a test that starts processes.
both_users_in_turn = pytest.mark.parametrize(
    "user", [USER, pytest.param(SENDER, marks=pytest.mark.long)], indirect=True
)


@pytest.fixture
def app(server: RedisServer, user: str) -> Iterator[Celery]:
    """Yield an app that connects as a user of the manual."""
    app = Celery("acl", broker="memory://", set_as_current=False)
    app.conf.update(settings(server, user), timezone="UTC", result_expires=None)
    yield app
    app.redbeat_redis.close()


def refused(admin: Any) -> list[tuple[str, str]]:
    """Return reason and object of each refusal, except CLIENT, which redis-py does not need."""
    log = [(str(line["reason"]), str(line["object"]).lower()) for line in admin.acl_log()]
    return [line for line in log if not line[1].startswith("client")]


def run(app: Celery, line: str, directory: Path) -> CommandResult:
    """Run one command line."""
    plan = directory / "entries.json"
    plan.write_text(PLAN)
    files = {"FILE": directory / "export.jsonl", "PLAN": plan}
    words = [str(files.get(word, word)) for word in shlex.split(line)]
    return run_command(app, *words)


def test_every_command_has_a_line() -> None:
    assert LINES.keys() == COMMANDS.keys(), "add the command to LINES"


@both_users
def test_every_command(app: Celery, admin: Any, tmp_path: Path, user: str) -> None:
    admin.hset("redbeat:bad", "definition", "{")
    admin.zadd("redbeat::schedule", {"redbeat:bad": 0})
    admin.hset("redbeat:orphan", "definition", definition("orphan"))
    admin.set("redbeat:no-hash", "x")
    grant(admin, *acl_rules(2), user=user)  # for migrate-prefix
    admin.sadd("redbeat::statics", "static")
    for name, line in ((name, line) for name, lines in LINES.items() for line in lines):
        result = run(app, line, tmp_path)
        allowed = {0, 1} if name in MAY_EXIT_WITH_1 else {0}
        assert result.code in allowed, (line, result.err)
        assert refused(admin) == [], line
        if name == "doctor":
            admin.delete("redbeat:bad", "redbeat:no-hash")  # they change no right of the rest
            assert run(app, "resume orphan", tmp_path).code == 0
    assert admin.hget("moved:orphan", "definition")


@both_users
def test_every_command_with_shards(app: Celery, admin: Any, tmp_path: Path, user: str) -> None:
    grant(admin, *acl_rules(3), user=user)
    app.conf.redbeat_shards = SHARDS
    for name, line in ((name, line) for name, lines in LINES.items() for line in lines):
        if name in ("shard", "migrate-prefix"):
            continue  # below, and refused
        result = run(app, line, tmp_path)
        assert result.code in ({0, 1} if name in MAY_EXIT_WITH_1 else {0}), (line, result.err)
        assert refused(admin) == [], line


@both_users
def test_the_number_of_shards_is_changed(
    app: Celery, admin: Any, tmp_path: Path, user: str
) -> None:
    """A beat of the user runs afterwards, and wakes up for an entry in any shard."""
    grant(admin, *acl_rules(3), "+hgetall", "+hsetnx", user=user)
    assert run(app, f"add {NAME} proj.task --every 60", tmp_path).code == 0
    assert run(app, f"shard {SHARDS}", tmp_path).code == 0
    assert run(app, f"shard {SHARDS} --delete", tmp_path).code == 0
    grant(admin, "-hgetall", "-hsetnx", user=user)
    app.conf.redbeat_shards, app.redbeat_conf = SHARDS, None
    beat = RedBeatScheduler(app)
    beat.tick()
    for number in range(2 * SHARDS):
        overdue(f"e{number}", app).save()
    schedule = Schedule(app)

    def ran() -> bool:
        beat.tick()
        return all(entry.total_run_count for entry in schedule.find("e*"))

    wait_until(ran)
    status = run(app, "status", tmp_path)
    assert status.code == 0, status.err
    beat.close()
    assert refused(admin) == []


@pytest.mark.parametrize("rule", acl_rules(3))
def test_each_right_for_shards_is_needed(app: Celery, admin: Any, rule: str) -> None:
    grant(admin, *(right for right in acl_rules(3) if right != rule))
    app.conf.redbeat_shards = SHARDS
    with suppress(redis.RedisError, RedBeatError):
        overdue("a", app).save()
    objects = [name for _, name in refused(admin)]
    assert objects
    assert all(fnmatchcase(name, rule[1:]) for name in objects)


@both_users
def test_the_dashboard(app: Celery, admin: Any) -> None:
    overdue("a", app).save()
    admin.hset("redbeat:bad", "definition", "{")
    admin.hset(".redbeat::quarantine", "redbeat:bad", json.dumps({"reason": "x", "since": 1}))
    admin.zadd("redbeat::schedule", {"redbeat:bad": -1})
    browser = Browser(create_app(Schedule(app), Access()).test_client(), {})
    pages = ["/", "/?sort=name", "/?q=a&state=paused", "/timeline", "/beats", "/new"]
    pages += [f"/entry{page}?name=a" for page in ("", "/edit", "/simulate", "/delete")]
    read = ("status", "doctor", "upcoming", "timeline", "calendars", "entries", "entry?name=a")
    pages += [f"/api/{page}" for page in read]
    for path in pages:
        browser.get(path)
    chosen = {"action": "pause", "entry": "a", "confirmed": "1"}
    assert browser.send("/selected", **chosen).status_code == 303
    for action in ("resume", "trigger"):
        answer = browser.client.post(f"/api/entry/{action}?name=a", json={})
        assert answer.status_code < 300
    body = {"task": "proj.task", "every": 60, "exclude": []}
    assert browser.client.put("/api/entry?name=c", json=body).status_code == 201
    assert browser.client.delete("/api/entry?name=c").status_code == 204
    browser.done("/entry/pause", "a", note="x")
    browser.done("/entry/resume", "a")
    browser.done("/entry/trigger", "a")
    form = {"kind": "interval", "rule": "90", "timezone": ""}
    assert browser.send("/entry/preview", "a", **form).status_code == 200
    browser.send("/entry/edit", "a", **form)
    browser.done("/quarantine/retry", "bad")
    assert browser.get("/entry/delete", name="a")
    assert browser.send("/entry/delete", "a").status_code == 303
    assert "a" not in Schedule(app)
    assert refused(admin) == []


def serves_redis_up(target: Target) -> bool:
    """Return whether the metrics say that Redis answers."""
    return "redbeat_redis_up 1.0" in target.get("/metrics").text


@pytest.mark.long
@both_users_in_turn
def test_the_servers(
    server: RedisServer, admin: Any, app: Celery, tmp_path: Path, user: str
) -> None:
    """The dashboard, the exporter and a beat run as a user of the manual, in processes."""
    project = Project(tmp_path, server.url)
    metrics_port, exporter_port = free_port(), free_port()
    overdue("a", app).save()
    try:
        web = project.start("redbeat", "web", "--port", "0", settings=settings(server, user))
        own = {**settings(server, user), "redbeat_metrics_port": metrics_port}
        # The second user also sends to this server, see test_a_beat_that_sends.
        beat = project.beat(settings={**own, "broker_url": "memory://"})
        line = ("redbeat", "exporter", "--port", str(exporter_port))
        exporter = project.start(*line, settings=settings(server, user))
        exporter.wait_for("Metrics are at")
        web.wait_for("press Ctrl-C")
        found = re.search(r"http://\S+/", web.output())
        assert found
        assert ">a</a>" in Target(int(found[0].split(":")[-1].strip("/"))).get("/").text
        wait_until(lambda: admin.hexists("redbeat:a", "meta"), 30, "a run")
        for port in (metrics_port, exporter_port):
            wait_until(partial(serves_redis_up, Target(port)), 30, "redbeat_redis_up 1.0")
        for process in (web, exporter, beat):
            assert process.stop() == 0
            assert "Traceback" not in process.output()
            assert "ERROR" not in process.output()
        assert refused(admin) == []
    finally:
        project.end()


@pytest.mark.parametrize("database", [0, pytest.param(1, marks=pytest.mark.long)])
def test_a_beat_that_sends(server: RedisServer, admin: Any, tmp_path: Path, database: int) -> None:
    """The second user sends with priority, to another database and as an event."""
    project = Project(tmp_path, server.url)
    sends = {
        **settings(server, SENDER),
        "broker_url": f"redis://127.0.0.1:{server.port}/{database}",
        "redbeat_delivery": "exactly_once",
        "task_send_sent_event": True,
    }
    web = Celery("web", broker="memory://", set_as_current=False)
    web.conf.update(settings(server, SENDER))
    broker: Any = redis.Redis(port=server.port, db=database, decode_responses=True)
    events = broker.pubsub()
    events.psubscribe("/*celeryev*")
    try:
        beat = project.beat(settings=sends)
        overdue("plain", web).save()
        entry = overdue("urgent", web)
        entry.options["priority"] = 3
        entry.save()
        for queue, name in (("celery", "plain"), ("celery\x06\x163", "urgent")):
            popped: Any = wait_until(partial(broker.blpop, [queue], 1), 30, queue)
            assert json.loads(popped[1])["headers"]["periodic_task_name"] == name
        wait_until(lambda: (events.get_message() or {}).get("type") == "pmessage", 10, "an event")
        assert beat.stop() == 0
        assert "ERROR" not in beat.output()
        assert "at least once" not in beat.output()
        assert refused(admin) == []
    finally:
        project.end()
        events.close()
        broker.close()
        web.redbeat_redis.close()


#: The rights that only the second user has.
MORE = [rule for rule in acl_rules(1) if rule not in acl_rules()]


@pytest.mark.parametrize("rule", MORE)
def test_each_right_of_the_second_user_is_needed(
    server: RedisServer, admin: Any, rule: str
) -> None:
    admin.acl_deluser(SENDER)
    rules = [right for right in acl_rules(1) if right != rule]
    admin.execute_command("ACL", "SETUSER", SENDER, *rules)
    broker = f"redis://127.0.0.1:{server.port}/{int(rule == '+select')}"
    app = Celery("acl", broker=broker, set_as_current=False)
    app.conf.update(settings(server, SENDER), task_send_sent_event=True, timezone="UTC")
    overdue("a", app).save()
    beat = RedBeatScheduler(app)
    beat.tick()
    wait_until(lambda: beat.tick() is not None and admin.hexists("redbeat:a", "meta"))
    assert refused(admin), "the beat handed the message over without this right"
    beat.close()
    app.redbeat_redis.close()
    app.close()


def test_the_second_user_may_do_all_that_the_first_may() -> None:
    assert set(acl_rules()) <= set(acl_rules(1)), "add the rule to each user in acl.rst"
    assert sorted(MORE) == ["&/*", "+lpush", "+select", "~celery*"]


@pytest.mark.parametrize("right", ["+zrange", "+scard", "+time"])
def test_a_missing_right_is_named(app: Celery, admin: Any, right: str) -> None:
    """The command line and the dashboard name the page with all rights, in one line."""
    overdue("a", app).save()
    grant(admin, right.replace("+", "-"))
    result = run_command(app, "list")
    assert result.code == EX_UNAVAILABLE
    (line,) = result.err.strip().splitlines()
    answer = create_app(Schedule(app), Access()).test_client().get("/")
    assert answer.status_code == 503
    for text in (line, answer.text):
        assert MISSING_RIGHT in text


def test_missing_keys_are_named(app: Celery, admin: Any) -> None:
    grant(admin, "resetkeys")
    result = run_command(app, "list")
    assert result.code == EX_UNAVAILABLE
    line = result.err.strip().splitlines()[-1]
    assert MISSING_RIGHT in line
