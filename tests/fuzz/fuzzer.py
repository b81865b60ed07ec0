"""Runs cases in batches, finds the case that a report is about, and makes that case small."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple, NoReturn

from tests.fuzz.mutator import Mutator
from tests.fuzz.surfaces import SURFACES, Surface, World

__all__ = ("Chunk", "Finding", "Result", "case_of", "load", "plan", "run")

#: Number of batches in a chunk, which is what a process runs at a time.
BATCHES: Final = 5
#: Seconds after which a batch is interrupted. A batch takes some seconds on a slow machine.
LIMIT: Final = 120
#: Default maximum number of kinds of findings in a chunk. A bad defect has many.
MOST: Final = 12
#: Replaces the case of a finding of a kind that the process has found before.
ANOTHER: Final = "another case of a kind that was found before"
#: Maximum number of runs to find one case of a batch and to make it small.
RUNS: Final = 60


class TooLong(BaseException):
    """A batch took too long. No tick, page or command handles this error."""


class Chunk(NamedTuple):
    """Some cases of a surface: those with the numbers ``first`` to ``first + cases - 1``."""

    surface: str
    seed: int
    first: int
    cases: int


@dataclass
class Finding:
    """What went wrong, and the case with which it does; the case is a Python literal."""

    report: str
    surface: str
    seed: int
    number: int
    case: str

    def __str__(self) -> str:
        where = f"--seed {self.seed} --replay '{self.surface}:{self.number}'"
        return f"{self.surface}: {self.report}\n    {where}\n    {self.case:.2000}"


@dataclass
class Result:
    """The result of a chunk."""

    chunk: Chunk
    seconds: float = 0.0
    findings: list[Finding] = field(default_factory=list)

    def dump(self) -> str:
        """Return the result as a line of JSON."""
        return json.dumps(asdict(self) | {"chunk": list(self.chunk)})

    @classmethod
    def load(cls, line: str) -> Result:
        """Return the result in a line."""
        values = json.loads(line)
        findings = [Finding(**finding) for finding in values["findings"]]
        return cls(Chunk(*values["chunk"]), values["seconds"], findings)


def load(path: Path) -> list[Result]:
    """Return the results in a file; an empty list if there is no file."""
    return [Result.load(line) for line in path.read_text().splitlines()] if path.exists() else []


def case_of(surface: Surface, seed: int, number: int) -> Any:
    """Return the case with this number."""
    return surface.make(Mutator(f"{seed}/{surface.name}/{number}"), number)


def plan(cases: int, seed: int, names: tuple[str, ...] = ()) -> Iterator[Chunk]:
    """Divide ``cases`` among surfaces by their shares, in whole batches, and into chunks."""
    surfaces = [SURFACES[name] for name in names or SURFACES]
    shares = sum(surface.share for surface in surfaces)
    for surface in surfaces:
        batches = max(-(-cases * surface.share // (shares * surface.size)), 1)
        for batch in range(0, batches, BATCHES):
            count = min(BATCHES, batches - batch) * surface.size
            yield Chunk(surface.name, seed, batch * surface.size, count)


def run(world: World, chunk: Chunk, most: int = MOST) -> Result:
    """Run a chunk; find a small case for each new kind of report, but for ``most`` at most."""
    surface, result = SURFACES[chunk.surface], Result(chunk)
    started = time.monotonic()
    for first in range(chunk.first, chunk.first + chunk.cases, surface.size):
        numbers = range(first, min(first + surface.size, chunk.first + chunk.cases))
        cases = {number: case_of(surface, chunk.seed, number) for number in numbers}
        for report in tried(world, surface, list(cases.values())):
            kind, number, case = kind_of(report), first, ANOTHER
            if kind not in world.known and len(result.findings) < most:
                world.known.add(kind)
                number, small = culprit(world, surface, cases, kind)
                case = repr(small)
            result.findings.append(Finding(report, surface.name, chunk.seed, number, case))
    result.seconds = time.monotonic() - started
    return result


def tried(world: World, surface: Surface, cases: list[Any], limit: float = LIMIT) -> list[str]:
    """Run cases together, for ``limit`` seconds at most; return what went wrong."""
    try:
        with limited(limit):
            return surface.run(world, cases)
    except (Exception, TooLong) as error:
        return [f"the batch ended: {type(error).__name__}: {error!s:.300}"]


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise an error in the block after this number of seconds."""

    def stop(_number: int, _frame: FrameType | None) -> NoReturn:
        raise TooLong(f"the batch took more than {seconds} s")

    previous = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def kind_of(report: str) -> str:
    """Return the report without what differs from case to case."""
    return re.sub(r"[0-9]+|'.*|\".*|name=\S*", "#", report)


def culprit(world: World, surface: Surface, cases: dict[int, Any], kind: str) -> tuple[int, Any]:
    """Return number and content of a case that alone leads to this kind of report.

    If no case does so alone, return the first number and all cases.
    """
    left = [RUNS]

    def fails(some: list[Any]) -> bool:
        left[0] -= 1
        return left[0] >= 0 and kind in map(kind_of, tried(world, surface, some))

    world.thorough = True
    try:
        numbers = list(cases)
        while len(numbers) > 1:
            half = numbers[: len(numbers) // 2]
            if not fails([cases[number] for number in half]):
                half = numbers[len(numbers) // 2 :]
            numbers = half
        case = cases[numbers[0]]
        if not fails([case]):
            return next(iter(cases)), list(cases.values())
        return numbers[0], smaller(case, lambda some: fails([some]))
    finally:
        world.thorough = False


def smaller(case: Any, fails: Callable[[Any], bool]) -> Any:
    """Return the case with parts left out and texts cut, as long as it fails."""
    for shorter in variants(case):
        if fails(shorter):
            return smaller(shorter, fails)
    return case


#: Minimum length of a text that is worth cutting.
SHORT: Final = 64


def variants(case: Any) -> Iterator[Any]:
    """Yield cases that have a part less, or a shorter part."""
    if isinstance(case, list):
        yield from (case[:at] + case[at + 1 :] for at in range(len(case)) if len(case) > 1)
    if isinstance(case, (list, tuple)):
        for at, part in enumerate(case):
            for shorter in variants(part):
                yield type(case)((*case[:at], shorter, *case[at + 1 :]))
    elif isinstance(case, bytes) and len(case) > SHORT:
        yield from (case[: len(case) // 2], case[len(case) // 2 :])
