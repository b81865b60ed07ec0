"""Crontabs with ``H``: numbers that the name of an entry determines, so that entries spread out."""

from __future__ import annotations

import re
from hashlib import sha1
from typing import Any, Final
from zlib import crc32

from celery.schedules import crontab

from redbeat.config import App
from redbeat.errors import InvalidEntryError

__all__ = ("has_hash", "hash_fraction", "hashed_crontab", "spread_fraction")

#: The lowest and the highest value that ``H`` stands for. Each month has the day 28.
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
    """Return a number from 0 to below 1; it is always the same for ``name``.

    CRC-32 spreads names that differ only in a number more evenly than a cryptographic hash.
    """
    return crc32(name.encode("utf-8", "backslashreplace")) / 2**32


def hash_fraction(text: str) -> float:
    """Return a number from 0 to below 1 that looks random; it is always the same for ``text``."""
    digest = sha1(text.encode("utf-8", "backslashreplace"), usedforsecurity=False).digest()
    return int.from_bytes(digest[:6], "big") / 2**48


def has_hash(text: Any) -> bool:
    """Return whether a crontab field, or a text of several fields, contains ``H``."""
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
    """Return a crontab in which the entry name determines a number for each ``H``.

    ``H`` stands for one value of the field, the same for all runs: ``hashed_crontab("report")``
    runs each hour, at a minute that depends on "report". ``H(0-5)`` is a value in a range,
    ``H/15`` each fifteenth value from a value below 15. The result is a crontab of Celery. Raises
    :exc:`InvalidEntryError` with the name of an invalid field.
    """
    texts = {
        "minute": minute,
        "hour": hour,
        "day_of_week": day_of_week,
        "day_of_month": day_of_month,
        "month_of_year": month_of_year,
    }
    fields = {field: _resolved(name, field, text) for field, text in texts.items()}
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
    if not lowest <= first <= last <= highest or (match[3] and not 0 < step <= last - first + 1):
        raise InvalidEntryError(field, f"{part!r:.30} is not within {lowest}-{highest}")
    # The other fields have hashes of their own, so that the hour does not follow from the minute.
    fraction = spread_fraction(name) if field == "minute" else hash_fraction(f"{field} {name}")
    value = first + int(fraction * (step or last - first + 1))
    return f"{value}-{last}/{step}" if step else str(value)
