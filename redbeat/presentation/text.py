"""Formats text for terminals: tables, times and durations."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, tzinfo
from decimal import Decimal
from typing import Final, NamedTuple

GAP: Final = "  "

#: In seconds, the longest unit first.
UNITS: Final = (("d", 86400), ("h", 3600), ("min", 60))


def width_of(text: str) -> int:
    """Return the width in terminal cells."""
    if text.isascii():
        return len(text)
    # The package wcwidth also knows rare marks and emoji, but would be one more dependency.
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    return len(text) + wide - sum(unicodedata.combining(char) > 0 for char in text)


def clipped(text: str, length: int) -> str:
    """Return at most ``length`` characters; a shortened text ends with ``~``."""
    return text if len(text) <= length else f"{text[: length - 1]}~"


#: Widest aligned column. A wider cell is printed in full, and only its row is unaligned.
MAX_COLUMN: Final = 200


class Room(NamedTuple):
    """How a table is made to fit on a terminal.

    If a line would have more than ``most`` characters, columns with the titles ``optional`` are
    left out: those without values first, then from the first one on. Those with the titles ``cut``
    are cut, but not below the widths given there.
    """

    most: int
    optional: Sequence[str] = ()
    cut: Mapping[str, int] = {}


def columns(rows: Iterable[Iterable[str]], room: Room | None = None) -> list[list[str]]:
    """Return one line per row, with aligned columns; the first row has the titles.

    A line is a list of the cells and of the spaces between them.
    """
    table = [*zip(*rows, strict=True)]
    if room is not None:
        table = _fitted(table, room)
    widths = [min(max(map(width_of, column)), MAX_COLUMN) for column in table]
    return [_line(row, widths) for row in zip(*table, strict=True)]


def _fitted(table: list[tuple[str, ...]], room: Room) -> list[tuple[str, ...]]:
    empty = {column[0] for column in table if set(column[1:]) <= {"-"}}
    left = sorted(room.optional, key=lambda title: title not in empty)
    while True:
        widths = {column[0]: max(map(width_of, column)) for column in table}
        most = room.most - len(GAP) * (len(table) - 1)
        cut = {one: min(widths[one], least) for one, least in room.cut.items() if one in widths}
        if sum({**widths, **cut}.values()) <= most or not left:
            break
        title = left.pop(0)
        table = [column for column in table if column[0] != title]
    while sum(widths.values()) > most and any(widths[one] > cut[one] for one in cut):
        widths[max(cut, key=lambda one: widths[one] - cut[one])] -= 1
    return [_cut(column, widths[column[0]], room) for column in table]


def _cut(column: tuple[str, ...], width: int, room: Room) -> tuple[str, ...]:
    return tuple(clipped(cell, width) for cell in column) if column[0] in room.cut else column


def _line(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    line: list[str] = []
    for cell, width in zip(row, widths, strict=True):
        line += cell, " " * (width - width_of(cell)) + GAP
    while line and not line[-1].strip():  # remove white space at the end of the line
        line.pop()
    return line


def in_zone(instant: datetime, zone: tzinfo) -> datetime:
    """Return an instant in a time zone, or unchanged if its year there isn't 1 to 9999."""
    try:
        return instant.astimezone(zone)
    except OverflowError:
        return instant


def moment(instant: datetime | None, zone: tzinfo) -> str:
    """Return an instant as wall-clock time in a time zone, to the second; ``-`` for None."""
    return "-" if instant is None else in_zone(instant, zone).strftime("%Y-%m-%d %H:%M:%S")


#: Seconds after which a run is shown as late. What people look at is refreshed only every few
#: seconds, so with less, punctual runs would look late.
LATE: Final = 10


def until(instant: datetime, now: datetime) -> str:
    """Return when an instant is, such as ``in 5 min``, ``now`` or ``2 h ago``."""
    seconds = round((instant - now).total_seconds())
    if not seconds:
        return "now"
    return f"in {duration(seconds)}" if seconds > 0 else f"{duration(-seconds)} ago"


def due(instant: datetime, now: datetime) -> str:
    """Return when a run is due, such as ``in 5 min``, ``now`` or ``20 s late``."""
    seconds = round((instant - now).total_seconds())
    if seconds > 0:
        return f"in {duration(seconds)}"
    return "now" if seconds > -LATE else f"{duration(-seconds)} late"


def duration(seconds: float) -> str:
    """Return a duration in at most two units, such as ``1 h 30 min`` or ``0.5 s``."""
    if seconds < 0:
        return f"-{duration(-seconds)}"
    return " ".join(f"{count} {unit}" for count, unit in quantities(seconds, 3)[:2])


def exact_duration(seconds: float) -> str:
    """Return a duration to the microsecond, which ``seconds_from`` can parse."""
    return " ".join(f"{count} {unit}" for count, unit in quantities(seconds, 6))


def quantities(seconds: float, digits: int) -> list[tuple[str, str]]:
    """Return pairs of a number and a unit, rounded to ``digits`` of a second."""
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
    """Return a number without an exponent and zeros at the end, such as ``0.000001``."""
    text = f"{Decimal(str(number)):f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def plain_text(value: object) -> str:
    """Return a field's value as a person would type it; commas separate list items."""
    if isinstance(value, float):
        return plain_number(value)
    return ", ".join(value) if isinstance(value, (list, tuple)) else str(value)
