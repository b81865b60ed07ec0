"""Tests of `celery redbeat plan` and `apply`, and of the lines that a dry run prints."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat import hashed_crontab
from redbeat.cli.command import Exit
from redbeat.management.apply import plan_entries
from redbeat.management.schedule import Schedule
from redbeat.storage.store import store_of
from redbeat.transfer.entry_file import read_entry_file
from tests.cli.commands import in_terminal
from tests.cli.conftest import Run
from tests.conftest import Make

TOML = """
managed_by = "billing"   # a comment

[entries.invoices]
task = "proj.invoices"
cron = "0 9 * * mon-fri"
timezone = "Asia/Tokyo"
kwargs = { loud = true }
queue = "slow"
max_runs = 100
start_time = 2026-01-01T09:00:00
jitter = "1m30s"

[entries."clean up"]
task = "proj.clean"
every = "1h30m"
"""


def write(tmp_path: Path, entries: dict[str, Any], owner: str = "billing") -> str:
    """Write a JSON file of entries; return its path."""
    file = tmp_path / "entries.json"
    file.write_text(json.dumps({"managed_by": owner, "entries": entries}), encoding="utf-8")
    return str(file)


def hourly(**fields: Any) -> dict[str, Any]:
    """Return the fields of an entry that runs once per hour."""
    return {"task": "proj.t", "every": 3600, **fields}


def test_a_file_in_toml_is_planned_and_applied(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "entries.toml"
    file.write_text(TOML, encoding="utf-8")
    planned = run("plan", str(file))
    assert planned.code == 0
    assert [line.split(":")[0].split(None, 1) for line in planned.lines] == [
        ["created", "invoices"],
        ["created", "clean up"],
    ]
    assert "proj.invoices, cron 0 9 * * mon-fri; next run 20" in planned.lines[0]
    assert run("list", "--json").json == []
    applied = run("apply", str(file), "--yes")
    assert applied.code == 0
    assert f"Applied {file}: 2 created" in applied.err
    (found,) = run("show", "invoices", "--json").json
    assert found["kwargs"] == {"loud": True}
    assert found["options"] == {"queue": "slow"}
    assert found["policy"] == {
        "timezone": "Asia/Tokyo",
        "start_time": "2026-01-01T00:00:00+00:00",
        "max_runs": 100,
        "jitter": 90.0,
        "managed_by": "billing",
    }
    again = run("plan", str(file), "--detailed-exitcode")
    assert again.code == 0
    assert all(line.startswith("unchanged") for line in again.lines)


#: The same midnight, in the forms of TOML and JSON.
MIDNIGHTS = (
    *("2027-01-01", '"2027-01-01"', '"20270101"', "2027-01-01T00:00:00", '"2027-01-01 00:00"'),
    *("2026-12-31T15:00:00Z", '"2026-12-31T15:00Z"', '"20261231T150000+0000"'),
)


def test_all_times_of_a_file_are_written_alike(run: Run, tmp_path: Path) -> None:
    lines = ['managed_by = "me"']
    for number, text in enumerate(MIDNIGHTS):
        lines += [f"[entries.a{number}]", 'task = "t.a"', 'timezone = "Asia/Tokyo"']
        lines += [f"{field} = {text}" for field in ("at", "start_time", "end_time")]
    file = tmp_path / "entries.toml"
    file.write_text("\n".join(lines), encoding="utf-8")
    assert run("apply", str(file), "--yes").code == 0
    found = run("list", "--json").json
    assert len(found) == len(MIDNIGHTS)
    for entry in found:
        times = entry["due_at"], entry["policy"]["start_time"], entry["policy"]["end_time"]
        assert {*times} == {"2026-12-31T15:00:00+00:00"}
    assert run("plan", str(file), "--detailed-exitcode").code == 0


def test_a_plan_names_each_change_with_old_and_new_values(run: Run, tmp_path: Path) -> None:
    entries = {"a": hourly(jitter=5), "b": hourly(), "c": hourly()}
    assert run("apply", write(tmp_path, entries), "--yes").code == 0
    file = write(tmp_path, {"a": hourly(every="2h", max_runs=3), "b": hourly(), "d": hourly()})
    ran = run("plan", file)
    changed, unchanged, created, removed = ran.lines
    assert changed.startswith("changed     a: schedule: every 1 h -> every 2 h; ")
    assert "; max_runs: none -> 3; jitter: 5.0 -> none; next run 20" in changed
    assert unchanged.startswith("unchanged   b: next run 20")
    assert created.startswith("created     d: proj.t, every 1 h; next run 20")
    assert removed == "removed     c"
    assert "1 created, 1 changed, 1 unchanged, 1 removed; nothing was written" in ran.err
    *items, counts = run("plan", file, "--json").json
    assert items[0]["changes"]["jitter"] == {"old": 5.0, "new": None}
    assert datetime.fromisoformat(items[0]["next_run"]) > datetime.now(timezone.utc)
    assert [item["action"] for item in items] == ["changed", "unchanged", "created", "removed"]
    assert counts == {"created": 1, "changed": 1, "unchanged": 1, "removed": 1, "dry_run": True}
    tried = run("apply", file, "--dry-run", "--json").json
    assert [item["changes"] for item in tried[:-1]] == [item["changes"] for item in items]
    assert tried[-1] == counts
    assert run("apply", file, "--yes").code == 0
    assert sorted(item["name"] for item in run("list", "--json").json) == ["a", "b", "d"]


def test_exit_codes_for_a_pipeline(run: Run, tmp_path: Path) -> None:
    file = write(tmp_path, {"a": hourly()})
    words = ("plan", file, "--detailed-exitcode")
    assert run(*words).code == 2
    assert run("plan", file).code == 0
    assert run("apply", file, "--yes").code == 0
    assert run(*words).code == 0
    assert run(*words, "--bogus").code == Exit.FAILED
    assert run("plan", file, "--bogus").code == Exit.USAGE
    assert run("plan", "/nonexistent", "--detailed-exitcode").code == Exit.FAILED


def test_an_invalid_setting_is_an_error_for_a_pipeline(
    run: Run, tmp_path: Path, app: Celery
) -> None:
    app.conf.redbeat_lock_timeout = "long"
    assert run("plan", write(tmp_path, {}), "--detailed-exitcode").code == Exit.FAILED


def test_entries_of_the_application_and_of_other_files_stay(
    run: Run, make: Make, tmp_path: Path
) -> None:
    make("application", 60)
    other = tmp_path / "other"
    other.mkdir()
    assert run("apply", write(other, {"theirs": hourly()}, "other"), "--yes").code == 0
    assert run("apply", write(tmp_path, {"ours": hourly()}), "--yes").code == 0
    assert run("apply", write(tmp_path, {}), "--yes").code == 0
    assert sorted(item["name"] for item in run("list", "--json").json) == ["application", "theirs"]


@pytest.mark.parametrize("owner", [None, "other"])
def test_an_entry_of_another_owner_is_only_taken_over_on_request(
    run: Run, make: Make, tmp_path: Path, owner: str | None
) -> None:
    make("a", 60, managed_by=owner)
    file = write(tmp_path, {"a": hourly(), "b": hourly()})
    for words in (("plan", file), ("apply", file, "--yes")):
        ran = run(*words)
        assert ran.code == Exit.CONFLICT
        assert f"managed by {owner!r}" in ran.err or "not managed by anybody" in ran.err
        assert "--adopt" in ran.err
    assert run("show", "a", "--json").json[0]["rule"] == {"every": "60"}
    assert run("apply", file, "--yes", "--adopt").code == 0
    assert run("show", "a", "--json").json[0]["policy"] == {"managed_by": "billing"}


def test_a_static_entry_is_never_taken_over(
    run: Run, make: Make, redis_client: redis.Redis, tmp_path: Path
) -> None:
    make("a", 60)
    redis_client.sadd("redbeat::statics", "a")
    ran = run("apply", write(tmp_path, {"a": hourly()}), "--yes", "--adopt")
    assert ran.code == Exit.CONFLICT
    assert "a is an entry of beat_schedule" in ran.err


def test_a_pause_and_the_history_outlive_an_apply(run: Run, make: Make, tmp_path: Path) -> None:
    ran_at = datetime(2026, 1, 1, tzinfo=timezone.utc)
    make("a", 60, managed_by="billing", last_run_at=ran_at, total_run_count=7)
    assert run("pause", "a", "--note", "ask Ann").code == 0
    assert run("apply", write(tmp_path, {"a": hourly()}), "--yes").code == 0
    (found,) = run("show", "a", "--json").json
    assert (found["rule"], found["state"], found["note"]) == (
        {"every": "3600"},
        "paused",
        "ask Ann",
    )
    assert (found["last_run_at"], found["total_run_count"]) == (ran_at.isoformat(), 7)
    assert run("plan", write(tmp_path, {"a": hourly()}), "--detailed-exitcode").code == 0


@pytest.mark.parametrize("change", ["edit", "delete", "create", "remove"])
def test_an_entry_that_changes_after_the_plan_is_left_alone(
    app: Celery, run: Run, tmp_path: Path, change: str
) -> None:
    """Another program writes between the plan and the writes."""
    assert run("apply", write(tmp_path, {"a": hourly(), "b": hourly()}), "--yes").code == 0
    file = write(tmp_path, {"a": hourly(every=60), "new": hourly()})
    schedule = Schedule(app)
    owner, items = read_entry_file(Schedule(app), file)
    entries = {item.where: item.entry for item in items if item.entry}
    planned = {item.change.name: item for item in plan_entries(schedule, owner, entries)}
    if change == "edit":
        run("edit", "a", "--every", "5")
    elif change == "delete":
        run("delete", "a", "--yes")
    elif change == "create":
        run("add", "new", "proj.mine", "--every", "5")
    else:
        run("edit", "b", "--every", "5")
    name = {"create": "new", "remove": "b"}.get(change, "a")
    assert planned[name].write(store_of(app)) is False
    if change == "delete":
        assert "a" not in schedule
    else:
        assert run("show", name, "--json").json[0]["rule"] == {"every": "5"}


INVALID = [
    ({"every": 5}, "task: is missing"),
    ({"task": "t"}, "give one of every, cron"),
    ({"task": "t", "every": 5, "cron": "@daily"}, "not every and cron"),
    ({"task": "t", "cron": "99 * * * *"}, "cron: "),
    ({"task": "t", "every": "soon"}, "every: 'soon' is not a duration"),
    (hourly(jiter=5), "jiter: is an unknown field; did you mean jitter?"),
    (hourly(jitter="x"), "jitter: 'x' is not a duration"),
    (hourly(args={}), "args: must be a list"),
    (hourly(coalesce="x"), "coalesce: must be one of"),
    (hourly(enabled="no"), "enabled: must be true or false"),
    (hourly(timezone="Mars"), "timezone: "),
    (hourly(start_time="tomorrow"), "start_time: must be a datetime or ISO 8601"),
    (hourly(options={"expires": "x"}), "options.expires"),
    (hourly(managed_by="x"), "managed_by: is an unknown field"),
    ([], "must be a table"),
]


@pytest.mark.parametrize(("fields", "problem"), INVALID)
def test_an_invalid_entry_is_named_and_nothing_is_written(
    run: Run, redis_client: redis.Redis, tmp_path: Path, fields: Any, problem: str
) -> None:
    ran = run("apply", write(tmp_path, {"good": hourly(), "bad": fields}), "--yes")
    assert ran.code == Exit.FAILED
    assert f"bad: {problem}" in ran.err or problem in ran.err
    assert "nothing was written, because the file has 1 invalid entry" in ran.err
    assert redis_client.keys() == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "cannot be read as JSON"),
        ("[]", "must be a JSON object"),
        ('{"entries": {}}', "managed_by: is missing"),
        ('{"managed_by": "x", "entry": {}}', "entry: is unknown"),
        ('{"managed_by": "x", "entries": {"a": {}, "a": {}}}', "'a' is given twice"),
    ],
)
def test_an_unreadable_file_is_refused(run: Run, tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "entries.json"
    file.write_text(text, encoding="utf-8")
    ran = run("plan", str(file))
    assert ran.code == Exit.UNREADABLE
    assert problem in ran.err


@pytest.mark.parametrize("text", ["%s = 1", "[%s]", "[x]\ny = {z = {%s = 1}}"])
def test_a_key_of_many_parts_is_refused(run: Run, tmp_path: Path, text: str) -> None:
    file = tmp_path / "entries.toml"
    file.write_text('managed_by = "x"\n' + text % ".".join(["a"] * 50_000), encoding="utf-8")
    ran = run("plan", str(file))
    assert ran.code == Exit.UNREADABLE
    assert "a key has more than 1000 dots" in ran.err


def test_dots_in_values_do_not_count_as_parts_of_a_key(run: Run, tmp_path: Path) -> None:
    dots = "a.b" * 300
    args = ", ".join(['"10.0.0.1"', "1.5"] * 200)
    texts = [f'["{dots}", \'{dots}\', """\n{dots}\\"""" ] # {dots}', f"[{args}]"]
    file = tmp_path / "entries.toml"
    entries = (f'[entries.e{n}]\ntask="t"\nevery=9\nargs={text}' for n, text in enumerate(texts))
    file.write_text("\n".join(['managed_by = "x"', *entries]), encoding="utf-8")
    ran = run("plan", str(file))
    assert ran.code == 0, ran.err
    assert "2 created" in ran.err


HOSTILE = (
    "DTSTART:20260101T000000Z\nRRULE:FREQ=WEEKLY;BYDAY=MO,TU;BYMONTHDAY=1;BYSETPOS=1;COUNT=99999"
)


@pytest.mark.parametrize("command", ["plan", "apply"])
def test_an_entry_whose_next_run_takes_too_long_is_refused(
    run: Run, app: Celery, tmp_path: Path, command: str
) -> None:
    file = write(tmp_path, {"good": hourly(), "bad": {"task": "proj.t", "rrule": HOSTILE}})
    ran = run(command, file, *["--yes"] * (command == "apply"))
    assert ran.code == Exit.FAILED
    assert "bad: schedule: computing the next run takes more than 250,000 steps" in ran.err
    assert not list(Schedule(app))


def test_apply_asks_for_confirmation_only_if_something_changes(run: Run, tmp_path: Path) -> None:
    file = write(tmp_path, {"a": hourly()})
    assert run("apply", file).code == Exit.FAILED
    assert run("list", "--json").json == []
    assert run("apply", file, answer="y\n").code == 0
    assert run("apply", file).code == 0


def test_a_file_is_read_from_standard_input(run: Run) -> None:
    text = json.dumps({"managed_by": "x", "entries": {"a": hourly()}})
    assert run("plan", "-", answer=text).lines[0].startswith("created     a: ")


@pytest.mark.long
def test_a_plan_is_coloured_in_a_terminal(redis_url: str, tmp_path: Path) -> None:
    file = write(tmp_path, {"a": {"task": "tests.acceptance.project.not", "every": 60}})
    text, code = in_terminal(redis_url, "plan", file, "--detailed-exitcode")
    assert code == Exit.DIFFERENT
    assert "\x1b[32mcreated   \x1b[0m" in text
    assert "did you mean 'tests.acceptance.project.note'?" in text


def test_h_in_a_crontab_is_a_number_that_the_name_determines(
    run: Run, app: Celery, tmp_path: Path
) -> None:
    entries = {name: {"task": "proj.t", "cron": "H H(0-5) * * *"} for name in ("a", "b")}
    file = write(tmp_path, entries)
    assert run("apply", file, "--yes").code == 0
    for name, entry in Schedule(app).items():
        assert entry.schedule == hashed_crontab(name, "H", "H(0-5)")
    assert "2 unchanged" in run("plan", file).err
    write(tmp_path, {"a": {"task": "proj.t", "cron": "H(9-5) * * * *"}, "b": entries["b"]})
    assert "a: cron: 'H(9-5)' is not within 0-59" in run("plan", file).err


# -- dry runs of other commands --------------------------------------------------------------------


def test_a_dry_run_of_an_import_prints_each_change(run: Run, make: Make, tmp_path: Path) -> None:
    for name in ("same", "different", "surplus"):
        make(name, 60)
    exported = run("export").out.splitlines()
    lines = {json.loads(line)["name"]: line for line in exported}
    new = lines["same"].replace('"same"', '"new"')
    changed = lines["different"].replace("60.0", "90.0")
    file = tmp_path / "f"
    file.write_text("\n".join([lines["same"], changed, new]), encoding="ascii")
    words = ("import", str(file), "--dry-run", "--prune")
    ran = run(*words, "--on-conflict", "replace")
    assert [line.split(":")[0].split() for line in ran.lines] == [
        ["unchanged", "same"],
        ["changed", "different"],
        ["created", "new"],
        ["removed", "surplus"],
    ]
    assert "schedule: every 1 min -> every 1 min 30 s; next run 20" in ran.lines[1]
    *items, counts = run(*words, "--on-conflict", "replace", "--json").json
    assert items[1]["changes"] == {"schedule": {"old": "every 1 min", "new": "every 1 min 30 s"}}
    assert (counts["changed"], counts["dry_run"]) == (1, True)
    assert "kept        different: schedule: " in run(*words, "--on-conflict", "keep").lines[1]
    refused = run(*words)
    assert refused.code == Exit.CONFLICT
    assert refused.lines[1].startswith("different   different: schedule: ")
    assert run("export").out.splitlines() == exported


def test_a_dry_run_of_a_migration_prints_each_entry_and_writes_nothing(
    run: Run, make: Make, redis_client: redis.Redis
) -> None:
    for name in ("copied", "same", "different"):
        make(name, 60)
    assert run("migrate-prefix", "redbeat:", "new:").code == 0
    redis_client.delete("new:copied")
    redis_client.hset("new:different", "definition", "{}")
    before = sorted(redis_client.scan_iter())
    ran = run("migrate-prefix", "redbeat:", "new:", "--dry-run", "--delete")
    assert {line.split(":")[0] for line in ran.lines} == {
        *("copied      copied", "same        same", "different   different")
    }
    assert "Dry run, nothing was written: 1 copied, 1 same, 1 different" in ran.err
    assert sorted(redis_client.scan_iter()) == before
    *items, counts = run("migrate-prefix", "redbeat:", "new:", "--dry-run", "--json").json
    assert {item["action"] for item in items} == {"copied", "same", "different"}
    assert counts["dry_run"] is True
    assert run("migrate-prefix", "redbeat:", "new:").json == []
    assert redis_client.exists("new:copied")


@pytest.mark.parametrize("field", ["args", "kwargs", "options"])
@pytest.mark.parametrize(
    "value",
    [
        {"__type__": "weekday", "wkday": 1, "n": 1},
        {"__type__": "interval", "every": 60, "relative": False},
        {"__type__": "rrule", "freq": "DAILY", "dtstart": 0},
        {"__type__": "datetime", "year": 2026, "month": 1, "day": 1, "timezone": "UTC"},
    ],
)
def test_an_object_of_another_type_is_an_error_of_its_field(
    run: Run, tmp_path: Path, field: str, value: Any
) -> None:
    table = {"task": "t", "every": 60, field: [value] if field == "args" else value, "queue": "q"}
    path = tmp_path / "file.json"
    path.write_text(json.dumps({"managed_by": "x", "entries": {"a": table}}))
    for command in (("plan",), ("apply", "--yes")):
        result = run(*command, str(path))
        assert result.code == (0 if field == "args" else Exit.FAILED)
