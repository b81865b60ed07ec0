"""Crontabs in which ``H`` is a number that depends on the entry's name, to spread runs."""

from __future__ import annotations

import re
from hashlib import sha1
from typing import Any, Final
from zlib import crc32

from celery.schedules import crontab

from redbeat.config import App
from redbeat.errors import InvalidEntryError

#: The lowest and highest ``H`` of each field. Every month has a day 28.
RANGES: Final = {
    "minute": (0, 59),
    "hour": (0, 23),
    "day_of_week": (0, 6),
    "day_of_month": (1, 28),
    "month_of_year": (1, 12),
}

#: ``H``, ``H(0-5)``, ``H/15`` or ``H(0-29)/10``.
HASH: Final = re.compile(r"H(?:\((\d{1,2})-(\d{1,2})\))?(?:/(\d{1,2}))?")


def spread_fraction(name: str) -> float:
    """Return a number in ``[0, 1)`` that depends only on ``name``.

    It's a CRC-32, which spreads names that differ only in a number, such as ``job1`` and ``job2``,
    more evenly than a cryptographic hash.
    """
    return crc32(name.encode("utf-8", "backslashreplace")) / 2**32


def hash_fraction(text: str) -> float:
    """Return a number in ``[0, 1)`` that looks random, but depends only on ``text``."""
    digest = sha1(text.encode("utf-8", "backslashreplace"), usedforsecurity=False).digest()
    return int.from_bytes(digest[:6], "big") / 2**48


def has_hash(text: Any) -> bool:
    return isinstance(text, str) and re.search(r"(?<![A-Za-z])H(?![A-Za-z])", text) is not None


def hashed_crontab(
    name: str,
    minute: str | int = "H",
    hour: str | int = "*",
    day_of_week: str | int = "*",
    day_of_month: str | int = "*",
    month_of_year: str | int = "*",
    app: App | None = None,
) -> crontab:
    """Return a Celery crontab in which each ``H`` is replaced by a number.

    The number depends on the entry's ``name`` and never changes: ``hashed_crontab("report")`` runs
    each hour, at a minute that "report" determines. ``H(0-5)`` is a number from 0 to 5. ``H/15`` is
    every fifteenth value, beginning with one of the first 15. Raises :exc:`InvalidEntryError` with
    the name of the invalid field.
    """
    texts = zip(RANGES, (minute, hour, day_of_week, day_of_month, month_of_year), strict=True)
    fields = {field: _resolved(name, field, text) for field, text in texts}
    return crontab(**fields, app=app)


def _resolved(name: str, field: str, text: str | int) -> str | int:
    if not isinstance(text, str) or not has_hash(text):
        return text
    return ",".join(_part(name, field, part.strip()) for part in text.split(","))


def _part(name: str, field: str, part: str) -> str:
    if not has_hash(part):
        return part
    match = HASH.fullmatch(part)
    lowest, highest = RANGES[field]
    if match is None:
        problem = f"{part!r:.30} is not valid; use H, H({lowest}-{highest}) or H/2"
        raise InvalidEntryError(field, problem)
    first, last = int(match[1] or lowest), int(match[2] or highest)
    step = int(match[3] or 0)
    if not lowest <= first <= last <= highest:
        raise InvalidEntryError(field, f"{part!r:.30} is not within {lowest}-{highest}")
    if match[3] and not 0 < step <= last - first + 1:
        problem = f"the step of {part!r:.30} must be from 1 to {last - first + 1}"
        raise InvalidEntryError(field, problem)
    # Other fields have hashes of their own, so that they don't follow from the minute.
    fraction = spread_fraction(name) if field == "minute" else hash_fraction(f"{field} {name}")
    value = first + int(fraction * (step or last - first + 1))
    return f"{value}-{last}/{step}" if step else str(value)
