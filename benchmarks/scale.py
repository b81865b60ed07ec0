"""``python -m benchmarks.scale`` measures the cost of reading and editing a large schedule.

Each ``celery redbeat`` command runs in its own process. For each operation, the table has the CPU
seconds of the process and of Redis, the elapsed time, the memory of the process, and the elapsed
time of the longest Redis command. On a busy machine, CPU seconds vary less than elapsed time. To
make the elapsed time vary less, give Redis real-time priority with ``chrt -f -p 1 PID``.

The results are stored in ``.benchmarks/scale.json``, separately for each number of entries. The
option ``--docs docs`` writes the table of the manual from the stored results, and extrapolates the
costs to ten million entries.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import redis
from celery.schedules import schedule

import redbeat
from examples.embedded import EmbeddedRedis
from redbeat.management.find import Filter, browse

from .pages import put
from .prepared import UnsentScheduler, beat, make_app
from .sides import CACHE

__all__ = ("COMMANDS", "Cost", "entries", "main", "table")

#: The file with the stored results: number of entries -> title -> cost.
RESULTS = CACHE / "scale.json"

#: The page of the manual with the table, and the name of the table.
PAGE, TABLE = "scale.rst", "scale-commands"

#: The number of entries to which the table of the manual extrapolates the costs.
GOAL = 10_000_000

#: How often a short operation is repeated in order to measure its mean cost.
REPEATED = 1000

#: Costs below ``SHORT`` CPU seconds are shown in milliseconds and not extrapolated.
SHORT = 0.1

#: Number of entries that are stored between two progress messages.
PROGRESS = 100_000

#: Number of entries of each tenant; an example of an entry name is ``tenant-0042:entry-7``.
TENANT = 100

#: One in ``PAUSED`` entries is paused.
PAUSED = 50

#: One in ``RARE`` entries has the task ``proj.rare``.
RARE = 1000

#: Title -> arguments of ``celery redbeat``.
COMMANDS = {
    "list --limit 20": ("list", "--limit", "20"),
    "list --match 'tenant-0042:*'": ("list", "--match", "tenant-0042:*"),
    "list --state paused --limit 20": ("list", "--state", "paused", "--limit", "20"),
    "list --state paused": ("list", "--state", "paused"),
    "list --state running": ("list", "--state", "running"),
    "list --task proj.rare": ("list", "--task", "proj.rare"),
    "status": ("status",),
    "doctor": ("doctor",),
    "export": ("export", "{file}"),
    "import, nothing differs": ("import", "{file}"),
    "import, a new schedule": ("import", "{file}"),
}


class Cost(NamedTuple):
    """What an operation costs.

    Attributes:
        seconds: the elapsed time.
        process: the CPU seconds of the process.
        server: the CPU seconds of Redis.
        kilobytes: the peak memory of the process, 0 if unknown.
        blocked: the seconds of the longest command of Redis; 0 if it was shorter than 1 ms.
    """

    seconds: float
    process: float
    server: float
    kilobytes: int
    blocked: float


def entries(app: Any, count: int) -> Iterator[redbeat.RedBeatSchedulerEntry]:
    """Yield new entries that become due in 60 to 70 minutes."""
    for index in range(count):
        yield redbeat.RedBeatSchedulerEntry(
            f"tenant-{index // TENANT:04}:entry-{index % TENANT}",
            "proj.rare" if index % RARE == 7 else f"proj.tasks.job{index % 20}",
            schedule(3600 + index % 600),
            args=[index],
            enabled=index % PAUSED != 3,
            last_run_at=datetime.now(timezone.utc),
            app=app,
        )


def slowest(client: Any) -> float:
    """Return the seconds of the longest Redis command since the previous call of this function."""
    found = client.slowlog_get(1000)
    client.slowlog_reset()
    return max((float(item["duration"]) for item in found), default=0.0) / 1e6


def server_cpu(client: Any) -> float:
    """Return the CPU seconds that Redis has used."""
    found = client.info("cpu")
    return float(found["used_cpu_user"]) + float(found["used_cpu_sys"])


def run(
    client: Any, program: Sequence[str], environment: dict[str, str], log: Any, memory: Path
) -> Cost:
    """Run a program and return its cost.

    The output of the program goes to ``log``. The program writes its peak memory in KiB to the file
    ``memory``.
    """
    slowest(client)
    began, before = time.perf_counter(), server_cpu(client)
    child = subprocess.Popen(program, env=environment, stdout=log, stderr=subprocess.STDOUT)
    _, code, usage = os.wait4(child.pid, 0)
    seconds = time.perf_counter() - began
    child.returncode = os.waitstatus_to_exitcode(code)
    process, server = usage.ru_utime + usage.ru_stime, server_cpu(client) - before
    return Cost(seconds, process, server, int(memory.read_text()), slowest(client))


def here(client: Any, operation: Callable[[], Any]) -> Cost:
    """Run an operation in this process and return its cost, without measuring the memory."""
    slowest(client)
    began, before, cpu = time.perf_counter(), server_cpu(client), time.process_time()
    operation()
    process, seconds = time.process_time() - cpu, time.perf_counter() - began
    return Cost(seconds, process, server_cpu(client) - before, 0, slowest(client))


def each(cost: Cost) -> Cost:
    """Return the mean cost of one operation, from the total cost of ``REPEATED`` operations."""
    seconds = (cost.seconds / REPEATED, cost.process / REPEATED, cost.server / REPEATED)
    return Cost(*seconds, cost.kilobytes, cost.blocked)


def load(app: Any, count: int) -> None:
    """Store ``count`` entries, 10,000 per call of ``save_all``, and print the progress."""
    schedule, source, began = redbeat.Schedule(app), entries(app, count), time.perf_counter()
    stored = 0
    while saved := schedule.save_all(
        entry for _, entry in zip(range(10_000), source, strict=False)
    ):
        stored += saved
        if stored % PROGRESS == 0:
            seconds = time.perf_counter() - began
            print(f"  {stored:,} of {count:,} stored in {seconds:.0f} s", flush=True)


def short_operations(app: Any, client: Any) -> Iterator[tuple[str, Cost]]:
    """Yield the costs of a save, an idle tick and a due entry; no message is published."""
    schedule = redbeat.Schedule(app)
    new = [
        redbeat.RedBeatSchedulerEntry(f"new-{number}", "proj.new", 3600, app=app)
        for number in range(REPEATED)
    ]
    yield "save(), a new entry", each(here(client, lambda: [entry.save() for entry in new]))
    schedule.delete_all([str(entry.name) for entry in new])
    keys = client.zrangebyscore("redbeat::schedule", 0, "+inf", start=0, num=REPEATED)
    with beat(app, UnsentScheduler) as scheduler:
        ticks = here(client, lambda: [scheduler.tick() for _ in range(REPEATED)])
        yield "idle tick", each(ticks)
        now = datetime.now(timezone.utc).timestamp()
        ran = json.dumps({"last_run_at": None, "total_run_count": 1})
        for key in keys:
            client.hset(key, "meta", ran)
            client.zadd("redbeat::schedule", {key: now - 1})

        def send() -> None:
            while scheduler.sent < REPEATED:
                scheduler.tick()

        yield f"due entry, {REPEATED:,} due", each(here(client, send))


def measure(count: int, titles: Sequence[str]) -> Iterator[tuple[str, Cost]]:
    """Yield the title and the cost of each operation on a schedule of ``count`` entries."""
    with EmbeddedRedis() as server, tempfile.TemporaryDirectory() as directory:
        client: Any = redis.Redis.from_url(server.url, socket_timeout=600)
        client.config_set("slowlog-log-slower-than", 1000)
        client.config_set("slowlog-max-len", 1000)
        app = make_app(server.url)
        yield "save_all, 10,000 per call", here(client, partial(load, app, count))
        used = client.info("memory")["used_memory"]
        print(f"Redis uses {used / count:.0f} bytes per entry")
        yield from short_operations(app, client)
        everything = redbeat.Schedule(app)
        for title, query in {
            "page": Filter(),
            "page, search by name": Filter("tenant-0042:", fold=True),
            "page, paused": Filter(states={"paused"}, fold=True),
            "page, by task": Filter(task="proj.rare", fold=True),
        }.items():
            yield title, here(client, partial(browse, everything, query))
        environment = {
            **os.environ,
            "REDBEAT_REDIS_URL": server.url,
            "CELERY_BROKER_URL": "memory://",
        }
        memory = Path(directory) / "memory"
        (Path(directory) / "scaleapp.py").write_text(
            "from benchmarks.prepared import make_app, note_peak_memory\n"
            f"app = make_app({server.url!r})\nnote_peak_memory({str(memory)!r})\n"
        )
        environment["PYTHONPATH"] = os.pathsep.join((directory, str(Path.cwd())))
        file = str(Path(directory) / "entries.jsonl")
        with (Path(directory) / "log").open("wb") as log:
            for title in titles:
                if "new schedule" in title:
                    client.execute_command("FLUSHALL", "SYNC")
                words = [word.format(file=file) for word in COMMANDS[title]]
                program = (sys.executable, "-m", "celery", "-A", "scaleapp", "redbeat", *words)
                yield title, run(client, program, environment, log, memory)
        client.close()


def keep(count: int, title: str, cost: Cost) -> None:
    """Add a result to the stored results."""
    kept = kept_results()
    kept.setdefault(str(count), {})[title] = cost
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(kept))


def kept_results() -> dict[str, dict[str, Any]]:
    """Return the stored results: number of entries -> title -> fields of the cost."""
    found: dict[str, dict[str, Any]] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    return found


def table(kept: dict[str, dict[str, Any]]) -> str:
    """Return the table of the manual; ``kept`` contains the stored results."""
    counts = sorted(map(int, kept))
    runs = [{title: Cost(*cost) for title, cost in kept[str(count)].items()} for count in counts]
    columns = [
        *(f"{count:,}" for count in counts),
        f"{GOAL:,}, computed",
        "memory",
    ]
    lines = [
        ".. Written by ``python -m benchmarks.scale --docs docs``; not edited by hand.",
        *("", ".. csv-table::", "   :header-rows: 1", "   :widths: auto", ""),
        "   " + ", ".join(f'"{title}"' for title in ("operation", *columns)),
    ]
    for title in dict.fromkeys(title for run in runs for title in run):
        costs = [run[title] for run in runs if title in run]
        with_title = [count for count, run in zip(counts, runs, strict=True) if title in run]
        cells = [
            cell(run[title].process, run[title].server) if title in run else "" for run in runs
        ]
        process, server = (
            extended(with_title, [getattr(cost, name) for cost in costs])
            for name in ("process", "server")
        )
        memory = max(cost.kilobytes for cost in costs)
        # Extrapolating the noise of a short operation would be meaningless.
        is_short = costs[-1].process + costs[-1].server < SHORT
        cells.append("" if is_short else cell(process, server))
        cells.append(f"{memory / 1024:.0f} MiB" if memory else "")
        escaped = title.replace("*", r"\*")  # in reST, a single asterisk starts emphasis
        lines.append("   " + ", ".join(f'"{text}"' for text in (escaped, *cells)))
    return "\n".join(lines) + "\n"


def cell(process: float, server: float) -> str:
    """Return the CPU seconds of the process and of Redis as text, in a suitable unit."""
    if process + server < SHORT:
        return f"{process * 1e3:.2f} + {server * 1e3:.2f} ms"
    return f"{process:.1f} + {server:.2f} s"


def extended(counts: Sequence[int], values: Sequence[float]) -> float:
    """Return the value for :data:`GOAL` entries, extrapolated from the first and last value.

    The result is at least the largest of ``values``, because noise may make a value smaller with
    more entries. A single value is assumed to be proportional to the number of entries.
    """
    first, begin = (counts[0], values[0]) if counts[1:] else (0, 0.0)
    slope = (values[-1] - begin) / (counts[-1] - first)
    return max(values[-1] + slope * (GOAL - counts[-1]), *values)


def main(argv: Sequence[str]) -> None:
    """Run the measurements and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--entries", type=int, default=100_000)
    parser.add_argument("--only", action="append", choices=COMMANDS)
    parser.add_argument(
        "--docs",
        type=Path,
        help="write the table of the manual to this directory, without measuring",
    )
    options = parser.parse_args(argv)
    if options.docs is not None:
        put(options.docs / PAGE, TABLE, table(kept_results()))
        return
    print(
        f"{options.entries:,} entries; the columns are CPU time of the process, CPU time of Redis, "
        "elapsed time, memory of the process, and time of the longest Redis command"
    )
    for title, cost in measure(options.entries, options.only or list(COMMANDS)):
        keep(options.entries, title, cost)
        print(
            f"{title:32}{cost.process:10.2f} s{cost.server:9.2f} s{cost.seconds:9.2f} s"
            f"{cost.kilobytes / 1024:7.0f} MiB{cost.blocked * 1e3:8.1f} ms",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1:])
