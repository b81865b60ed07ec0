"""The command ``python -m tests.fuzz``: many cases in parallel processes, or one case again."""

from __future__ import annotations

import argparse
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, suppress
from itertools import islice
from multiprocessing import get_context
from multiprocessing.queues import SimpleQueue
from pathlib import Path

from tests.fuzz.fuzzer import (
    ANOTHER,
    Chunk,
    Finding,
    Result,
    case_of,
    kind_of,
    load,
    plan,
    run,
    tried,
)
from tests.fuzz.surfaces import SURFACES, World
from tests.servers import RedisServer

__all__ = ("main",)

_worlds: list[World] = []


def begin(urls: SimpleQueue[str]) -> None:
    """Take one of the Redis servers for this process."""
    _worlds.append(World(urls.get()))


def work(chunk: Chunk) -> Result:
    """Run a chunk in a process of the pool."""
    return run(_worlds[0], chunk)


def results_of(chunks: Iterable[Chunk], jobs: int) -> Iterator[Result]:
    """Run chunks in parallel. A chunk that ends its process is a finding as well."""
    queue, context = iter(chunks), get_context("spawn")
    with ExitStack() as stack:
        servers = [stack.enter_context(RedisServer()) for _ in range(jobs)]
        while first := list(islice(queue, 2 * jobs)):
            urls: SimpleQueue[str] = context.SimpleQueue()
            for server in servers:
                urls.put(server.url)
            with ProcessPoolExecutor(jobs, context, begin, (urls,)) as pool:
                yield from _results_of_pool(pool, first, queue)


def _results_of_pool(
    pool: ProcessPoolExecutor, first: Iterable[Chunk], queue: Iterator[Chunk]
) -> Iterator[Result]:
    """Run the first chunks, and those of the queue until a process ends."""
    running = {pool.submit(work, chunk): chunk for chunk in first}
    while running:
        done, _ = wait(running, return_when=FIRST_COMPLETED)
        for future in done:
            chunk = running.pop(future)
            try:
                yield future.result()
            except BrokenProcessPool:
                yield died(chunk)
                continue
            for following in islice(queue, 1):
                with suppress(BrokenProcessPool):
                    running[pool.submit(work, following)] = following


def died(chunk: Chunk) -> Result:
    """Return the result of a chunk during which a process ended."""
    finding = Finding("a process ended", chunk.surface, chunk.seed, chunk.first, repr(chunk))
    return Result(chunk, findings=[finding])


def main(arguments: list[str]) -> int:
    """Run the command; return 0 if everything held."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000, help="number of cases in all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="number of processes")
    parser.add_argument("--surface", action="append", default=[], choices=tuple(SURFACES))
    parser.add_argument("--results", type=Path, help="keep the results in this file, and resume")
    parser.add_argument("--replay", metavar="SURFACE:NUMBER", help="run one case, and show it")
    options = parser.parse_args(arguments)
    if options.replay:
        return replay(options.seed, options.replay)
    results = load(options.results) if options.results else []
    known = {result.chunk for result in results}
    chunks = list(plan(options.cases, options.seed, tuple(options.surface)))
    results = [result for result in results if result.chunk in set(chunks)]
    started, count = time.monotonic(), 0
    for result in results_of((chunk for chunk in chunks if chunk not in known), options.jobs):
        results.append(result)
        count += result.chunk.cases
        if options.results and result.seconds:  # a chunk that ended its process runs again
            with options.results.open("a") as file:
                file.write(result.dump() + "\n")
        for finding in result.findings:
            if finding.case != ANOTHER:
                print(f"FOUND {finding}", flush=True)
    seconds = time.monotonic() - started
    summarize(results)
    print(f"{count} cases in {seconds:.0f} s, {count / max(seconds, 0.001):.0f} a second")
    return 1 if any(result.findings for result in results) else 0


def summarize(results: list[Result]) -> None:
    """Print the number of cases and findings of each surface, and each kind of finding once."""
    cases, seconds, kinds = Counter[str](), Counter[str](), Counter[str]()
    examples: dict[str, Finding] = {}
    for result in results:
        name = result.chunk.surface
        cases[name] += result.chunk.cases
        seconds[name] += int(result.seconds * 1000)
        for finding in result.findings:
            kinds[kind_of(f"{name}: {finding.report}")] += 1
            examples.setdefault(kind_of(f"{name}: {finding.report}"), finding)
    print(f"{'surface':<14}{'cases':>10}{'a second':>10}   (of one process)")
    for name, count in cases.items():
        print(f"{name:<14}{count:>10}{count * 1000 // max(seconds[name], 1):>10}")
    print(f"{'all':<14}{sum(cases.values()):>10}; {len(kinds)} kinds of findings")
    for kind, times in kinds.most_common():
        print(f"{times:>6} x {examples[kind]}")


def replay(seed: int, text: str) -> int:
    """Run one case, and print the case and what went wrong."""
    name, _, number = text.rpartition(":")
    case = case_of(SURFACES[name], seed, int(number))
    print(repr(case))
    with RedisServer() as server:
        world = World(server.url)
        world.thorough = True
        found = tried(world, SURFACES[name], [case])
        world.close()
    print("\n".join(found) or "everything held")
    return 1 if found else 0
