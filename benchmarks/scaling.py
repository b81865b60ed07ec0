"""The arithmetic of ``docs/scale.rst``, from the numbers that were measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .rows import Finding, Row

__all__ = ("arithmetic",)

#: Dispatches a second for which the arithmetic is done.
WANTED = (1_000, 10_000, 100_000)

#: The part of a Redis that its scripts may take before latency shows.
USED = 0.5


def found(findings: Mapping[str, Finding], name: str, words: str) -> Row | None:
    """Return the row of a finding whose title contains some words."""
    rows = findings[name].rows if name in findings else []
    return next((row for row in rows if words in row.what and row.ours), None)


def arithmetic(findings: Mapping[str, Finding]) -> str:
    """Return the include: what one beat, two beats and a Redis can do, and what follows."""
    parts = [".. Written by ``python -m benchmarks``; not edited by hand.\n"]
    entry = found(findings, "entry", "scheduler time per due entry")
    beat = found(findings, "beat", "a real beat sends")
    two = found(findings, "two-beats", "two active-active beats")
    if entry is None or beat is None or beat.ours is None or entry.ours is None:
        return "\n".join([*parts, "Not measured yet.\n"])
    count = number(beat.what)
    each = beat.ours / count
    lines = [
        ("scheduler time per due entry, publishing excluded", micros(entry.ours)),
        ("a real beat, per message, publishing included", micros(each)),
        ("so one beat sends at most", f"{1 / each:,.0f} a second"),
    ]
    if two is not None and two.ratio:
        lines.append(("two beats are faster by", f"{two.ratio:.2f} times"))
    scripts = redis_time(findings)
    if scripts:
        lines.append(("Redis spends in scripts, per due entry", micros(scripts)))
        lines.append(
            (f"so one Redis, {USED:.0%} of it, keeps up with", f"{USED / scripts:,.0f} a second")
        )
    return "\n".join([*parts, table(("measured", "value"), lines), demand(each, scripts)])


def number(text: str) -> int:
    """Return the first number in a title."""
    words = (word.replace(",", "") for word in text.split())
    return next(int(word) for word in words if word.isdigit())


def redis_time(findings: Mapping[str, Finding]) -> float | None:
    """Return the seconds that Redis takes for a due entry."""
    row = found(findings, "entry", "time of Redis per due entry")
    return None if row is None else row.ours


def micros(seconds: float) -> str:
    """Return a short time."""
    return f"{seconds * 1e6:,.0f} µs"


def demand(each: float, scripts: float | None) -> str:
    """Return how many beats and how many Redis servers a number of dispatches takes."""
    lines = []
    for wanted in WANTED:
        beats = -(-wanted * each // 1)
        servers = "-" if scripts is None else f"{-(-wanted * scripts / USED // 1):,.0f}"
        lines.append((f"{wanted:,}", f"{max(beats, 1):,.0f}", servers))
    return table(("dispatches a second", "beats, at least", "shards, at least"), lines)


def table(heading: tuple[str, ...], lines: Sequence[tuple[str, ...]]) -> str:
    """Return a table of reStructuredText."""
    body = "\n".join("   " + ", ".join(f'"{cell}"' for cell in line) for line in [heading, *lines])
    return f".. csv-table::\n   :header-rows: 1\n   :widths: auto\n\n{body}\n"
