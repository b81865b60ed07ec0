"""Computes the estimates in ``docs/scale.rst`` from measured values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .rows import Finding, Row

__all__ = ("arithmetic",)

#: The rates in the table of estimates, in dispatches per second.
DISPATCH_RATES = (1_000, 10_000, 100_000)

#: Maximum share of a Redis server's CPU that scripts can use without higher latency.
MAX_REDIS_SHARE = 0.5


def find_row(findings: Mapping[str, Finding], name: str, title: str) -> Row | None:
    """Return a row of the measurement ``name``: the first row whose title contains ``title``.

    Returns None if there is no such row.
    """
    rows = findings[name].rows if name in findings else []
    return next((row for row in rows if title in row.what and row.ours), None)


def arithmetic(findings: Mapping[str, Finding]) -> str:
    """Return an include file with the capacity of one beat, of two beats and of one Redis."""
    parts = [".. Written by ``python -m benchmarks``; not edited by hand.\n"]
    entry = find_row(findings, "entry", "scheduler time per due entry")
    beat = find_row(findings, "beat", "a real beat sends")
    two = find_row(findings, "two-beats", "two active-active beats")
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
            (
                f"so one Redis, {MAX_REDIS_SHARE:.0%} of it, keeps up with",
                f"{MAX_REDIS_SHARE / scripts:,.0f} a second",
            )
        )
    return "\n".join([*parts, table(("measured", "value"), lines), demand(each, scripts)])


def number(text: str) -> int:
    """Return the first integer in a title."""
    words = (word.replace(",", "") for word in text.split())
    return next(int(word) for word in words if word.isdigit())


def redis_time(findings: Mapping[str, Finding]) -> float | None:
    """Return the CPU seconds that Redis uses per due entry."""
    row = find_row(findings, "entry", "time of Redis per due entry")
    return None if row is None else row.ours


def micros(seconds: float) -> str:
    """Return a duration as text in microseconds."""
    return f"{seconds * 1e6:,.0f} µs"


def demand(each: float, scripts: float | None) -> str:
    """Return a table with the numbers of beats and Redis servers for each dispatch rate.

    ``each`` is the time of a beat per message, and ``scripts`` is the time of Redis per entry, both
    in seconds.
    """
    lines = []
    for rate in DISPATCH_RATES:
        beats = -(-rate * each // 1)
        servers = "-" if scripts is None else f"{-(-rate * scripts / MAX_REDIS_SHARE // 1):,.0f}"
        lines.append((f"{rate:,}", f"{max(beats, 1):,.0f}", servers))
    return table(("dispatches a second", "beats, at least", "shards, at least"), lines)


def table(heading: tuple[str, ...], lines: Sequence[tuple[str, ...]]) -> str:
    """Return a reStructuredText table."""
    body = "\n".join("   " + ", ".join(f'"{cell}"' for cell in line) for line in [heading, *lines])
    return f".. csv-table::\n   :header-rows: 1\n   :widths: auto\n\n{body}\n"
