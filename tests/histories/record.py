"""Records the data that real beats leave in Redis, for the tests in this directory.

``python -m tests.histories.record`` runs the project in ``project.py`` several times:

- with ``celery-redbeat`` 2.4.2, in UTC and in the zone of New York
- with this package
- with this package and then with 2.4.2

The command writes one file in ``recordings`` for each. It takes up to a minute and a half, mostly
waiting for a crontab. With ``--python PATH``, it records the version in that environment, in UTC.

A recording has four snapshots:

- "started": soon after the first beat started
- "running": after entries were edited, moved, disabled and deleted, and rules ended
- "stopped": after SIGTERM, and after other programs wrote entries
- "killed": after SIGKILL of a second beat, whose lock still exists

To save space, only the first recording keeps all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import redis

from benchmarks.sides import PEER_VERSION, Side, install_peer, ours
from tests.histories.project import RETIRED
from tests.histories.snapshots import RECORDINGS, SCHEDULE, take
from tests.servers import RedisServer
from tests.waiting import wait_until

PROJECT = Path(__file__).with_name("project.py")
STATICS, LOCK = "redbeat::statics", "redbeat::lock"
#: The snapshots of a recording, described in the docstring of this module.
SNAPSHOTS = ("started", "running", "stopped", "killed")
#: Seconds within which a crontab that runs every minute has run.
LONGEST = 90.0
NEW_YORK = "America/New_York"
#: The name of this package's recording, which does not depend on the version.
OURS = "3"

#: The fields that programs in other languages write while no beat runs.
WRITTEN_RAW: dict[str, dict[str, Any]] = {
    "raw": {"definition": {"name": "raw", "task": "proj.raw", "schedule": {"every": 3600.0}}},
    "raw, never ran": {
        "definition": {
            "name": "raw, never ran",
            "task": "proj.raw",
            "args": None,
            "schedule": {"every": 3600.0},
            "enabled": True,
        },
        "meta": {"last_run_at": None},
    },
}


class Recorder:
    """Runs the project in a directory, with a Redis."""

    def __init__(self, zone: str, directory: Path, url: str) -> None:
        self.directory = directory
        shutil.copy(PROJECT, directory)
        self.env = {
            "HISTORIES_REDIS": url,
            "HISTORIES_BROKER": url.removesuffix("/0") + "/1",
            "HISTORIES_TIMEZONE": zone,
        }
        self.client = redis.Redis.from_url(url, decode_responses=True)

    @contextmanager
    def beat(self, side: Side, **env: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run a beat and kill it at the end; errors contain the output of the beat."""
        log = self.directory / "beat.log"
        celery = [side.python, "-m", "celery", "-A", "project", "beat", "--pidfile="]
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*celery, "-S", "redbeat.RedBeatScheduler", "-l", "info"],
                cwd=self.directory,
                env=side.environment(**self.env, **env),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            yield process
        except AssertionError as error:
            raise AssertionError(f"{error}\n{log.read_text(errors='replace')}") from None
        finally:
            process.kill()
            process.wait()

    def step(self, side: Side, name: str) -> None:
        """Run a command of the project."""
        command = [side.python, PROJECT.name, name]
        env = side.environment(**self.env)
        subprocess.run(command, cwd=self.directory, env=env, check=True)

    def runs(self, name: str) -> int:
        """Return how many runs are recorded for an entry."""
        meta = json.loads(self.client.hget(f"redbeat:{name}", "meta") or "{}")
        return int(meta.get("total_run_count", 0))

    def score(self, name: str) -> float | None:
        """Return the score of an entry."""
        score = self.client.zscore(SCHEDULE, f"redbeat:{name}")
        return None if score is None else float(score)

    def write_raw(self) -> None:
        """Write entries as programs in other languages do."""
        for name, fields in WRITTEN_RAW.items():
            schedule = fields["definition"]["schedule"]
            schedule.update({"__type__": "interval", "relative": False})
            texts: Any = {field: json.dumps(value) for field, value in fields.items()}
            self.client.hset(f"redbeat:{name}", mapping=texts)
            self.client.zadd(SCHEDULE, {f"redbeat:{name}": 0})
        # The time at which a task ended; the task itself sets this time as its last run.
        key = "redbeat:interval, moved by its task"
        ended = {"year": 2026, "month": 2, "day": 28, "hour": 23, "minute": 59}
        meta = {"last_run_at": {"__type__": "datetime", **ended}, "total_run_count": 41}
        self.client.hset(key, "meta", json.dumps(meta))
        # With this score a beat reads the entry although no run is due.
        self.client.zadd(SCHEDULE, {"redbeat:crontab, nudged": 0})


def until(condition: Callable[[], object], message: str) -> None:
    """Wait until a condition is true."""
    wait_until(condition, LONGEST, message)


class RecordingSpec(NamedTuple):
    """What to record: which package, in which time zone, and which snapshots to keep.

    The second beat runs ``side`` too, unless ``second`` names another package.
    """

    side: Side
    zone: str = "UTC"
    kept: Sequence[str] = ("killed",)
    second: Side | None = None

    def made(self) -> dict[str, Any]:
        """Make the recording and return it."""
        with tempfile.TemporaryDirectory() as directory, RedisServer() as server:
            recorder = Recorder(self.zone, Path(directory), server.url)
            with recorder.client:
                found = snapshots(recorder, self.side, self.second or self.side)
        return {"timezone": self.zone, "snapshots": {name: found[name] for name in self.kept}}


def snapshots(recorder: Recorder, side: Side, second: Side) -> dict[str, Any]:
    """Run the project, and return the snapshots by name."""
    found = {}
    client, runs, score = recorder.client, recorder.runs, recorder.score
    recorder.step(side, "save")
    with recorder.beat(side) as first:
        until(lambda: runs("static second") > 1, "two runs")
        found["started"] = take(client)
        recorder.step(side, "change")
        until(lambda: score("rule, until") == score("rule, count") == -1, "the ends of rules")
        until(lambda: runs("static minute") and runs("interval, edited"), "a run of the crontab")
        found["running"] = take(client)
        first.send_signal(signal.SIGTERM)
        first.wait(LONGEST)
    recorder.write_raw()
    found["stopped"] = take(client)
    before = runs("static second")
    with recorder.beat(second, HISTORIES_SECOND_BEAT="1"):
        until(lambda: runs("static second") > before + 1, "two runs of the second beat")
        until(lambda: not client.sismember(STATICS, RETIRED), "the removal of a static entry")
    found["killed"] = take(client)
    assert LOCK in found["killed"]["keys"]
    assert LOCK not in found["stopped"]["keys"]
    return found


def release_of(python: str) -> str:
    """Return the version of celery-redbeat in the environment of an interpreter."""
    code = "from importlib.metadata import version; print(version('celery-redbeat'))"
    found = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True)
    return found.stdout.strip()


def recordings_to_make(python: str | None) -> dict[str, RecordingSpec]:
    """Return the specifications of the recordings to make, by name."""
    if python is not None:
        release = release_of(python)
        return {release: RecordingSpec(Side("other", release, os.path.abspath(python)))}  # noqa: PTH100
    peer = install_peer()
    return {
        PEER_VERSION: RecordingSpec(peer, kept=SNAPSHOTS),
        f"{PEER_VERSION}-new-york": RecordingSpec(peer, NEW_YORK),
        OURS: RecordingSpec(ours(), kept=("stopped", "killed")),
        f"{OURS}-then-{PEER_VERSION}": RecordingSpec(ours(), second=peer),
    }


def main() -> None:
    """Make all recordings at the same time and write them to files."""
    parser = argparse.ArgumentParser(prog="python -m tests.histories.record", description=__doc__)
    parser.add_argument("--python", help="an interpreter that has another release")
    parser.add_argument("--to", type=Path, default=RECORDINGS, help="the directory to write to")
    options = parser.parse_args()
    every = recordings_to_make(options.python)
    with ThreadPoolExecutor() as pool:
        made = pool.map(RecordingSpec.made, every.values())
        for name, recording in zip(every, made, strict=True):
            path = options.to / f"{name}.json"
            path.write_text(json.dumps(recording, indent=1, ensure_ascii=False) + "\n")
            sys.stdout.write(f"{path.name}: {path.stat().st_size // 1024} KiB\n")


if __name__ == "__main__":
    main()
