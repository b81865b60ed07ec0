"""``python -m benchmarks``: compare this project with the release that it replaces."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import redis

from examples.embedded import EmbeddedRedis

from .report import as_rst, as_text
from .sides import install_peer, ours
from .suite import FULL, QUICK, run_plan


def arguments(argv: list[str]) -> argparse.Namespace:
    """Return the options of the command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure this project against the released celery-redbeat, on one Redis of "
        "their own, in turn. Takes about ten minutes; needs the package index the first time.",
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, one round, a minute")
    parser.add_argument("--output", type=Path, help="write the table to this file, as rst")
    return parser.parse_args(argv)


def note(progress: str) -> None:
    """Tell what is being measured, away from the table."""
    print(progress, file=sys.stderr, flush=True)


def server_name(url: str) -> str:
    """Return name and version of a Redis server."""
    with redis.Redis.from_url(url) as client:
        info = client.info("server")
    return f"{info.get('server_name', 'redis')}-server {info['redis_version']}"


def main(argv: list[str]) -> None:
    """Install the release, run the plan, print the table. Never fails on a number."""
    options = arguments(argv)
    note("installing the release it is compared to")
    sides = (ours(), install_peer())
    with EmbeddedRedis() as server:
        results = run_plan(QUICK if options.quick else FULL, sides, server.url, note)
        name = server_name(server.url)
    print(as_text(results, name))
    if options.output:
        made_by = "--quick" if options.quick else ""
        options.output.write_text(as_rst(results, name, made_by), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
