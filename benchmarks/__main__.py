"""``python -m benchmarks`` compares RedBeat 3 with other schedulers and with a bare send_task loop.

A bare send_task loop is a program that only sends tasks, without a scheduler.
"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import redis

from examples.embedded import EmbeddedRedis

from . import core
from .bench import Bench
from .growth import growth, peers
from .report import as_text, facts, write_docs
from .rows import Finding, Store
from .sides import CACHE, SCRIPTS
from .targets import ROWS

DOCS = SCRIPTS.parent / "docs"

#: Measurement name -> function, in the order in which a full run calls the functions.
MEASUREMENTS: dict[str, Callable[[Bench], Finding]] = {**ROWS, "growth": growth, "peers": peers}


def arguments(argv: list[str]) -> argparse.Namespace:
    """Parse the command-line options."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Compare RedBeat 3 with RedBeat 2, with other schedulers and with a loop that "
        "only sends tasks. The command starts a Redis server, on which the schedulers run one "
        "after the other. The command takes about half an hour. The first run of the command "
        "downloads the other schedulers.",
    )
    parser.add_argument(
        "what",
        nargs="?",
        choices=["core"],
        help="measure in half a minute what a run, an idle tick and a save cost",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="measure small sizes in a single round, so that the command takes two minutes",
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=MEASUREMENTS,
        metavar="ROW",
        help="run only this measurement; repeat the option for several measurements; "
        f"the measurements are {', '.join(MEASUREMENTS)}",
    )
    parser.add_argument(
        "--report",
        action="store_true",
        help="write the documentation from stored results, without measuring",
    )
    parser.add_argument(
        "--results", type=Path, default=CACHE / "rows.json", help="file with the results"
    )
    parser.add_argument(
        "--docs",
        type=Path,
        help="write tables and plots to this directory; with --report, the default is docs/",
    )
    parser.add_argument(
        *("--set", "-s"),
        action="append",
        default=[],
        metavar="NAME=JSON",
        help="set a setting of RedBeat 3 in measurements that publish messages; "
        "repeat the option for several settings",
    )
    return parser.parse_args(argv)


def note(progress: str) -> None:
    """Print a progress message to stderr, because stdout contains only the tables."""
    print(progress, file=sys.stderr, flush=True)


def server_name(url: str) -> str:
    """Return the name and the version of a Redis server."""
    with redis.Redis.from_url(url) as client:
        info = client.info("server")
    version = info.get("valkey_version", info["redis_version"])
    return f"{info.get('server_name', 'redis')}-server {version}"


def settings_of(texts: list[str]) -> dict[str, Any]:
    """Parse command-line arguments of the form ``NAME=JSON`` and return the settings."""
    pairs = (text.partition("=") for text in texts)
    return {name: json.loads(value) for name, _, value in pairs}


def measure(options: argparse.Namespace, store: Store) -> int:
    """Run the selected measurements, store the results, and return how many measurements failed."""
    failed = 0
    with EmbeddedRedis() as server:
        bench = Bench(server.url, options.quick, settings_of(options.set), note)
        environment = facts(server_name(server.url))
        for name in options.only or MEASUREMENTS:
            note(f"-- {name}")
            try:
                finding = MEASUREMENTS[name](bench)
            except Exception:
                traceback.print_exc()
                failed += 1
                continue
            store.keep(name, replace(finding, facts=environment, quick=options.quick))
            print(as_text(finding.rows), *finding.remarks, "", sep="\n", flush=True)
    return failed


def main(argv: list[str]) -> int:
    """Run the measurements, write the documentation if requested, and return the exit code.

    The exit code is 1 if a measurement raised an error. A result that misses its target is not an
    error.
    """
    options = arguments(argv)
    if options.what == "core":
        core.main()
        return 0
    store = Store(options.results)
    failed = 0 if options.report else measure(options, store)
    docs = options.docs or (DOCS if options.report else None)
    if docs is not None:
        for path in write_docs(store.load(), docs):
            note(f"wrote {path}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
