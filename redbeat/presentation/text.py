"""Formats text for terminals: tables, times, durations, and names with control characters."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from datetime import datetime, tzinfo
from typing import Final

__all__ = ("clipped", "columns", "duration", "moment", "printable", "width_of")

GAP: Final = "  "

#: The units of durations with their lengths in seconds, the longest unit first.
UNITS: Final = (("d", 86400), ("h", 3600), ("min", 60))

#: Unicode categories of characters that could control the terminal or that cannot be encoded.
UNPRINTABLE: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def printable(text: str) -> str:
    """Return ``text`` with control characters and unencodable characters escaped."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escaped(char) for char in text)


def _escaped(char: str) -> str:
    if unicodedata.category(char) not in UNPRINTABLE:
        return char
    if "\udc80" <= char <= "\udcff":  # a byte that is not UTF-8
        return f"\\x{ord(char) - 0xDC00:02x}"
    return char.encode("unicode_escape").decode("ascii")


def width_of(text: str) -> int:
    """Return the width of ``text`` in terminal cells."""
    if text.isascii():
        return len(text)
    return sum(_cells(char) for char in text)


def _cells(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def clipped(text: str, width: int) -> str:
    """Return ``text``, shortened to at most ``width`` cells; a shortened text ends with ``~``."""
    if width_of(text) <= width:
        return text
    while width_of(text) >= width:
        text = text[:-1]
    return f"{text}~"


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return one line for each row, with aligned columns."""
    widths = [max(map(width_of, column)) for column in zip(*rows, strict=True)]
    return [_line(row, widths) for row in rows]


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = (cell + " " * (width - width_of(cell)) for cell, width in zip(row, widths, strict=True))
    return GAP.join(cells).rstrip()


def moment(instant: datetime | None, zone: tzinfo) -> str:
    """Return an instant as wall-clock time in a time zone, or ``-`` for None.

    The text includes seconds, and also milliseconds if they are not 0.
    """
    if instant is None:
        return "-"
    local = instant.astimezone(zone)
    text = local.strftime("%Y-%m-%d %H:%M:%S")
    return f"{text}.{local.microsecond // 1000:03d}" if local.microsecond >= 1000 else text


def duration(seconds: float) -> str:
    """Return a duration in at most two units: ``1 h 30 min``, ``0.5 s``."""
    if seconds < 0:
        return f"-{duration(-seconds)}"
    parts = []
    rest = round(seconds, 3)
    for unit, size in UNITS:
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count:.0f} {unit}")
    if round(rest, 3) or not parts:
        parts.append(f"{round(rest, 3):g} s")
    return " ".join(parts[:2])
