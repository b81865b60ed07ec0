"""Computes the capacities in ``docs/scale.rst`` from measured values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .rows import Finding, Row

__all__ = ("arithmetic",)

#: Maximum share of a Redis server's CPU that scripts can use without higher latency.
MAX_REDIS_SHARE = 0.5


def find_row(findings: Mapping[str, Finding], name: str, title: str) -> Row | None:
    """Return the first row of the measurement ``name`` whose title contains ``title``.

    Return None if no row has a title that contains ``title``.
    """
    rows = findings[name].rows if name in findings else []
    return next((row for row in rows if title in row.what and row.ours), None)


def arithmetic(findings: Mapping[str, Finding]) -> str:
    """Return the capacity of beats and of a Redis server, for the documentation."""
    parts = [".. Written by ``python -m benchmarks``; not edited by hand.\n"]
    entry = find_row(findings, "entry", "scheduler time per due entry")
    beat = find_row(findings, "beat", "a real beat sends")
    two = find_row(findings, "two-beats", "two active-active beats")
    if entry is None or beat is None or beat.ours is None or entry.ours is None:
        return "\n".join([*parts, "Not measured yet.\n"])
    count = number(beat.what)
    each = beat.ours / count
    lines = [
        ("scheduler time per due entry, without publishing", micros(entry.ours)),
        ("time of a real beat per message, including publishing", micros(each)),
        ("maximum rate of one beat", f"{1 / each:,.0f} a second"),
    ]
    if two is not None and two.ratio:
        lines.append(("speed of two beats compared with one beat", f"{two.ratio:.2f} times"))
    scripts = redis_time(findings)
    if scripts:
        lines.append(("CPU time of Redis per due entry", micros(scripts)))
        lines.append(
            (
                f"maximum rate of one Redis server at {MAX_REDIS_SHARE:.0%} of its CPU",
                f"{MAX_REDIS_SHARE / scripts:,.0f} a second",
            )
        )
    return "\n".join([*parts, table(("measured", "value"), lines)])


def number(text: str) -> int:
    """Return the first integer in the title of a row."""
    words = (word.replace(",", "") for word in text.split())
    return next(int(word) for word in words if word.isdigit())


def redis_time(findings: Mapping[str, Finding]) -> float | None:
    """Return the CPU seconds that Redis uses per due entry."""
    row = find_row(findings, "entry", "time of Redis per due entry")
    return None if row is None else row.ours


def micros(seconds: float) -> str:
    """Return a duration as text in microseconds."""
    return f"{seconds * 1e6:,.0f} µs"


def table(heading: tuple[str, ...], lines: Sequence[tuple[str, ...]]) -> str:
    """Return a reStructuredText table."""
    body = "\n".join("   " + ", ".join(f'"{cell}"' for cell in line) for line in [heading, *lines])
    return f".. csv-table::\n   :header-rows: 1\n   :widths: auto\n\n{body}\n"
