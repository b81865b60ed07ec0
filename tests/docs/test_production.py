"""Tests that follow the page about production; ``test_deploy_files.py`` checks its files."""

from __future__ import annotations

import configparser
import re
import shlex
import shutil
import subprocess
from typing import Any

import pytest
import redis
import yaml  # type: ignore[import-untyped]

from tests.acceptance.processes import Process
from tests.docs.blocks import ROOT, blocks_of
from tests.docs.reader import Reader
from tests.servers import free_port
from tests.waiting import wait_until

#: The tests start many processes.
pytestmark = pytest.mark.timeout(600)

PAGE = ROOT / "docs" / "production.rst"
COMPOSE = ROOT / "docs" / "deploy" / "compose.yaml"
SUPERVISOR = ROOT / "docs" / "deploy" / "supervisor.conf"

#: The port of a beat in its container.
PORT = "9540"


def save_app(reader: Reader) -> str:
    """Save the page's files in the directory of the reader; return the app's module."""
    files = {block.caption: block.text for block in blocks_of(PAGE) if block.caption}
    for name, text in files.items():
        reader.save(name, text)
    reader.environment["REDIS_URL"] = f"redis://{reader.address}"
    return files["proj.py"]


def services() -> dict[str, dict[str, Any]]:
    """Return the services of the Compose file."""
    found: dict[str, dict[str, Any]] = yaml.safe_load(COMPOSE.read_text())["services"]
    return found


def test_the_compose_file_keeps_the_schedule_and_publishes_no_redis() -> None:
    found = services()
    assert found["redis"]["command"][1:] == [
        *("--appendonly", "yes", "--maxmemory-policy", "noeviction")
    ]
    volumes = yaml.safe_load(COMPOSE.read_text())["volumes"]
    assert [v.partition(":")[0] for v in found["redis"]["volumes"]] == [*volumes]
    assert "ports" not in found["redis"]
    assert all(port.startswith("127.0.0.1:") for port in found["dashboard"]["ports"])
    assert found["beat"]["deploy"]["replicas"] == 2
    assert found["beat"]["stop_grace_period"] == "30s"


def test_compose_accepts_the_file(reader: Reader) -> None:
    docker = shutil.which("docker")
    if not docker or subprocess.run([docker, "compose", "version"], check=False).returncode:
        pytest.skip("Docker Compose is not installed; another test runs the commands of the file")
    reader.save("compose.yaml", COMPOSE.read_text())
    reader.shell("REDBEAT_WEB_TOKEN=0123456789abcdef docker compose config --quiet")


@pytest.mark.long
@pytest.mark.usefixtures("redis_client")
def test_the_commands_of_the_compose_file_run_together(reader: Reader, unused_port: int) -> None:
    """Runs the commands of each container as processes, with the Redis of the tests."""
    found, project, ports = services(), save_app(reader), [free_port(), free_port()]
    reader.environment["REDBEAT_WEB_TOKEN"] = "0123456789abcdef"
    started: dict[str, list[Process]] = {}
    for name in ("worker", "beat", "dashboard"):
        command = " ".join(found[name]["command"])
        command += f" --port {unused_port}" if name == "dashboard" else ""
        for number in range(found[name].get("deploy", {}).get("replicas", 1)):
            if name == "beat":  # each container has a port of its own
                reader.save("proj.py", project.replace(PORT, str(ports[number])))
            started.setdefault(name, []).append(reader.start(command))
            if name == "beat":
                started[name][-1].wait_for("beat: Starting...")
    (worker,), beats, (dashboard,) = started.values()
    worker.wait_for("hello world")
    dashboard.wait_for("http://0.0.0.0:")
    wait_until(lambda: sum("standing by" in beat.output() for beat in beats) == 1, 30)

    (add,) = re.findall(r"docker compose exec beat (celery .* add .*)", PAGE.read_text())
    reader.shell(add)
    worker.wait_for("hello Redis")
    kind, *check = found["beat"]["healthcheck"]["test"]
    assert kind == "CMD"
    checks = [shlex.join(check).replace(PORT, str(port)) for port in ports]
    for line in checks:
        reader.shell(line)

    leader = int("standing by" in beats[0].output())
    assert beats[leader].stop() == 0
    beats[1 - leader].wait_for("Acquired lock")
    reader.shell(checks[1 - leader])
    with pytest.raises(AssertionError, match="refused"):  # although another beat leads now
        reader.shell(checks[leader])


# -- Supervisor, log files, uninstalling ----------------------------------------------------------


def program() -> dict[str, str]:
    """Return Supervisor's settings of the beat."""
    parser = configparser.RawConfigParser()
    parser.read(SUPERVISOR, encoding="utf-8")
    return dict(parser["program:redbeat-beat"])


def quiet_app(reader: Reader) -> None:
    """Save the app without metrics, so that beats of several tests don't want one port."""
    project = save_app(reader)
    reader.save("proj.py", re.sub(r"(?m)^app\.conf\.redbeat_metrics.*\n", "", project))


@pytest.mark.long
def test_supervisor_restarts_beat_unless_a_setting_is_wrong(reader: Reader) -> None:
    assert program()["autorestart"] == "unexpected"
    quiet_app(reader)
    wrong = (reader.directory / "proj.py").read_text() + 'app.conf.redbeat_lock_timeout = "x"\n'
    reader.save("proj.py", wrong)
    command = program()["command"].removeprefix("/srv/proj/.venv/bin/")
    assert reader.start(command).popen.wait(30) == int(program()["exitcodes"])


@pytest.mark.long
@pytest.mark.usefixtures("redis_client")
def test_a_renamed_log_file_is_replaced(reader: Reader) -> None:
    quiet_app(reader)
    (line,) = re.findall(
        r"(celery -A proj beat .*--logfile) /var/log/celery/beat.log", PAGE.read_text()
    )
    beat, log = reader.start(f"{line} beat.log"), reader.directory / "beat.log"
    wait_until(lambda: log.exists() and "Sending due task" in log.read_text(), 30)
    log.rename(reader.directory / "beat.log.1")
    wait_until(lambda: log.exists() and "Sending due task" in log.read_text(), 30)
    assert beat.stop() == 0


@pytest.mark.long
def test_nothing_is_left_after_uninstalling(reader: Reader, redis_client: redis.Redis) -> None:
    redis_client.select(1)
    quiet_app(reader)
    beat = reader.start("celery -A proj beat -S redbeat --loglevel info")
    beat.wait_for("Sending due task")
    assert beat.stop() == 0
    assert {str(key)[:8] for key in redis_client.scan_iter()} >= {"redbeat:", ".redbeat"}
    reader.shell("python remove.py")
    assert redis_client.keys() == []
