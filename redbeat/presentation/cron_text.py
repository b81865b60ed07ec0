"""Crontab fields as people write them: nicknames, names, 7 for Sunday, and ``H``.

``H`` is a number that depends on the entry's name, to spread runs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from celery.schedules import crontab
from celery.utils.time import weekday

from redbeat.config import App
from redbeat.entries.decide import hash_fraction, spread_fraction
from redbeat.errors import InvalidEntryError

NICKNAMES: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}

STEP: Final = r"(?:/0*([1-9][0-9]*))?"
#: An item of a crontab field: a value, or ``*`` or a range, with or without a step.
ITEM: Final = re.compile(
    rf"([a-z]+|[0-9]+)|\*{STEP}|([a-z]+|[0-9]+)-([a-z]+|[0-9]+){STEP}", re.IGNORECASE
)
#: The full names; the short form of each is its first three letters.
NAMES: Final = {
    "day_of_week": ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday"),
    "month_of_year": (
        *("january", "february", "march", "april", "may", "june"),
        *("july", "august", "september", "october", "november", "december"),
    ),
}

SUNDAY: Final = 7

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


def without_nickname(nickname: str) -> str:
    """Return the five crontab fields that a nickname such as ``@daily`` stands for.

    Raises ``ValueError`` for an unknown nickname. ``@reboot`` isn't supported, because a schedule
    can't depend on the start of a machine.
    """
    try:
        return NICKNAMES[nickname.strip().lower()]
    except KeyError:
        known = ", ".join(NICKNAMES)
        raise ValueError(
            f"{nickname} is unknown; use one of {known}, or five crontab fields"
        ) from None


def celery_field(field: str, text: str) -> str:
    """Return the text of a crontab field in the form that Celery reads.

    In ``day_of_week``, 7 means Sunday, as in cron; Celery knows only 0. Raises ``ValueError`` for
    what Celery would misread: it reads only the first three letters of a name, and ignores what
    follows a range or a step, so it takes ``mon#1`` for Monday. Celery itself checks that numbers
    are in range.
    """
    return ",".join(_celery_item(field, item) for item in text.split(","))


def _celery_item(field: str, item: str) -> str:
    match = ITEM.fullmatch(item)
    names = NAMES.get(field, ())
    known = {*names, *(name[:3] for name in names)}
    values = [match[number] for number in (1, 3, 4) if match[number]] if match else []
    if match is None or not all(value.isdigit() or value.lower() in known for value in values):
        number = f"a number or a name ({names[1][:3]}, {names[1]})" if names else "a number"
        problem = f"must be *, {number}, or a range; a step such as /2 follows * or a range"
        raise ValueError(f"{item!r:.60} {problem}")
    if field != "day_of_week":
        return item
    days = [int(value) if value.isdigit() else weekday(value) for value in values]
    return item if max(days, default=0) != SUNDAY else _without_seven(days, int(match[5] or 1))


def _without_seven(days: Sequence[int], step: int) -> str:
    begin, end = days[0], days[-1]
    if begin == SUNDAY:
        begin, end = 0, end % SUNDAY
    found = (str(day % SUNDAY) for day in range(begin, end + 1, step))
    return ",".join(dict.fromkeys(found))


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
