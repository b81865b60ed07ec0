"""Formats text for terminals: tables, times and durations."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from datetime import datetime, tzinfo
from decimal import Decimal
from typing import Final

GAP: Final = "  "

#: The units of durations with their lengths in seconds, the longest unit first.
UNITS: Final = (("d", 86400), ("h", 3600), ("min", 60))


def width_of(text: str) -> int:
    """Return the width of ``text`` in terminal cells."""
    if text.isascii():
        return len(text)
    # The package wcwidth also knows rare marks and emoji, but RedBeat avoids the dependency.
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    return len(text) + wide - sum(unicodedata.combining(char) > 0 for char in text)


def clipped(text: str, length: int) -> str:
    """Return at most ``length`` characters of ``text``; a shortened text ends with ``~``."""
    return text if len(text) <= length else f"{text[: length - 1]}~"


#: Maximum width of an aligned column. A wider cell is printed in full; only its row is unaligned.
MAX_COLUMN: Final = 200


def columns(rows: Iterable[Iterable[str]]) -> list[list[str]]:
    """Return one line for each row, with aligned columns.

    A line is a list of the cells and of the spaces between the cells.
    """
    cells = [tuple(row) for row in rows]
    sizes = [[width_of(cell) for cell in row] for row in cells]
    widths = [min(max(column), MAX_COLUMN) for column in zip(*sizes, strict=True)]
    return [_line(row, size, widths) for row, size in zip(cells, sizes, strict=True)]


def _line(row: Sequence[str], sizes: Sequence[int], widths: Sequence[int]) -> list[str]:
    line: list[str] = []
    for cell, size, width in zip(row, sizes, widths, strict=True):
        line += cell, " " * (width - size) + GAP
    while line and not line[-1].strip():  # remove white space at the end of the line
        line.pop()
    return line


def in_zone(instant: datetime, zone: tzinfo) -> datetime:
    """Return an instant in a time zone, or unchanged if its local year is not from 1 to 9999."""
    try:
        return instant.astimezone(zone)
    except OverflowError:
        return instant


def moment(instant: datetime | None, zone: tzinfo) -> str:
    """Return an instant as wall-clock time in a time zone, or ``-`` for None.

    The text includes seconds, and also milliseconds if they are not 0.
    """
    if instant is None:
        return "-"
    local = in_zone(instant, zone)
    text = local.strftime("%Y-%m-%d %H:%M:%S")
    return f"{text}.{local.microsecond // 1000:03d}" if local.microsecond >= 1000 else text


def duration(seconds: float) -> str:
    """Return a duration as text with at most two units, such as ``1 h 30 min`` or ``0.5 s``."""
    if seconds < 0:
        return f"-{duration(-seconds)}"
    return " ".join(f"{count} {unit}" for count, unit in quantities(seconds, 3)[:2])


def exact_duration(seconds: float) -> str:
    """Return a duration as text that is exact to the microsecond, such as ``1 d 2 h 3 min``.

    ``seconds_from`` parses the text.
    """
    return " ".join(f"{count} {unit}" for count, unit in quantities(seconds, 6))


def quantities(seconds: float, digits: int) -> list[tuple[str, str]]:
    """Return a duration as pairs of a number and a unit, rounded to ``digits`` of a second."""
    parts = []
    rest = round(Decimal(repr(seconds)), digits)
    for unit, size in UNITS:
        count, rest = divmod(rest, size)
        if count:
            parts.append((f"{count:.0f}", unit))
    if rest or not parts:
        parts.append((plain_number(rest), "s"))
    return parts


def plain_number(number: float | Decimal) -> str:
    """Return a number without an exponent and without zeros at the end, such as ``0.000001``."""
    text = f"{Decimal(str(number)):f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def plain_text(value: object) -> str:
    """Return the value of a field as text that a person can type; commas separate list items."""
    if isinstance(value, float):
        return plain_number(value)
    return ", ".join(value) if isinstance(value, (list, tuple)) else str(value)
