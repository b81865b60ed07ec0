"""Parses and formats rules: schedules as text, in commands and on the dashboard.

A rule is a kind, one of :data:`KINDS`, and a text. :data:`RULES` has what people can write.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta, tzinfo
from decimal import Decimal
from typing import Any, Final, NamedTuple

from celery import Celery
from celery.exceptions import ImproperlyConfigured
from celery.schedules import BaseSchedule, ParseException, crontab, schedule, solar

from redbeat.calendar import sun, zones
from redbeat.errors import InvalidEntryError
from redbeat.printing import plural
from redbeat.schedules import ical, next_run, rule

from . import cron_text
from .text import exact_duration, plain_number

#: In the order of the command line.
CRON_FIELDS: Final = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")

#: In seconds, the longest unit first.
UNITS: Final = {"w": 604800, "d": 86400, "h": 3600, "m": 60, "s": 1}

#: A number with a unit, such as ``1.5 h`` or ``5 minutes``.
QUANTITY: Final = re.compile(
    r"(\d+(?:\.\d*)?|\.\d+) *(weeks?|days?|hours?|min(?:ute)?s?|sec(?:ond)?s?|[wdhms])"
)

#: The white space before each part, such as ``RRULE:``, of a rule on a single line.
BETWEEN_LINES: Final = re.compile(
    r"\s+(?=(?:DTSTART|RRULE|RDATE|EXRULE|EXDATE)[:;])", re.IGNORECASE
)


def seconds_from(text: str) -> float:
    """Return a duration such as ``30``, ``30s``, ``1h30m``, ``2 d 12 h`` or ``1w`` in seconds.

    A number without a unit is in seconds. Raises ``ValueError`` for what isn't a duration.
    """
    text = text.strip()
    with_unit = f"{text}s" if re.fullmatch(r"[0-9.]+", text) else text
    quantities = QUANTITY.findall(with_unit)
    sizes = [UNITS[unit[0]] for _, unit in quantities]
    is_whole = re.fullmatch(rf"(?:{QUANTITY.pattern} *)+", with_unit) is not None
    if not is_whole or sizes != sorted(set(sizes), reverse=True):
        problem = (
            "is not a duration: use seconds, or numbers with w, d, h, m or s, the longest unit "
            "first"
        )
        raise ValueError(f"{text!r} {problem}")
    seconds = sum(Decimal(number) * UNITS[unit[0]] for number, unit in quantities)
    return int(seconds) if seconds == int(seconds) else float(seconds)


def parse_rule(kind: str, text: str, zone: tzinfo, app: Celery, name: str = "") -> BaseSchedule:
    """Return the schedule that a rule of one of the :data:`KINDS` describes.

    ``zone`` is for times and rules that name no time zone. ``name`` is the entry's name, which
    determines the numbers for ``H`` in a crontab. Raises :exc:`InvalidEntryError` with the kind as
    its field.
    """
    text = text.strip()
    try:
        if not text:
            raise ValueError("is empty; enter the rule by which the entry runs")
        return RULES[kind].parse(text, zone, app, name)
    except InvalidEntryError as error:
        raise InvalidEntryError(kind, error.problem) from error
    except (ImproperlyConfigured, ParseException, TypeError, ValueError, OverflowError) as error:
        raise InvalidEntryError(kind, str(error)) from error


def has_own_zone(when: Any) -> bool:
    """Return whether a schedule ignores the ``timezone`` of its entry."""
    return isinstance(when, (schedule, solar, rule.RuleSchedule))


def _every(text: str, _zone: tzinfo, app: Celery, _name: str) -> BaseSchedule:
    # The runs of "1h relative" or "1h (relative)" are rounded, as in Celery.
    length = text.removesuffix("(relative)").removesuffix("relative")
    seconds = seconds_from(length)
    if not seconds:
        raise ValueError("must be above 0 seconds")
    return schedule(seconds, length != text, app=app)


def _cron(text: str, _zone: tzinfo, app: Celery, name: str) -> BaseSchedule:
    if not cron_text.has_hash(text):
        return crontab(**_cron_fields(text), app=app)
    if not name:
        raise ValueError("H in a crontab depends on the entry name; give the name of one entry")
    return cron_text.hashed_crontab(name, **_cron_fields(text), app=app)


def _cron_fields(text: str) -> dict[str, str]:
    fields = (cron_text.without_nickname(text) if text.startswith("@") else text).split()
    if len(fields) != 5:
        valid = f"{text} *" if len(fields) == 4 else "30 9 * * mon-fri"
        raise ValueError(
            f"{text!r} has {plural(len(fields), 'field')}, but a crontab has 5: minute, hour, day "
            f"of month, month, day of week, such as {valid!r}"
        )
    return {
        name: ",".join(
            item if cron_text.has_hash(item) else cron_text.celery_field(name, item)
            for item in field.split(",")
        )
        for name, field in zip(CRON_FIELDS, fields, strict=True)
    }


def cron_warning(text: str) -> str:
    """Return a warning if cron would run a crontab on other days than Celery, else ""."""
    fields = text.split()
    if len(fields) != len(CRON_FIELDS) or any(fields[field].startswith("*") for field in (2, 4)):
        return ""
    minute, hour, day, month, weekday = fields
    return (
        "the day of the month and the weekday must both match, as in Celery; in cron, either. For "
        f"either, make two entries, '{minute} {hour} {day} {month} *' and '{minute} {hour} * "
        f"{month} {weekday}'; for both, keep {text!r}"
    )


def _rrule(text: str, zone: tzinfo, _app: Celery, _name: str) -> BaseSchedule:
    text = BETWEEN_LINES.sub("\n", text)
    key = zones.zone_key(zone)
    # Only DTSTART can contain the time zone, so a rule without a start gets one, at the epoch. A
    # rule with COUNT needs the user's own start, because COUNT counts from it.
    if "DTSTART" not in text.upper() and "COUNT" not in text.upper() and key not in (None, "UTC"):
        text = f"DTSTART;TZID={key}:19700101T000000\n{text}"
    return ical.from_ical(text)


def _at(text: str, zone: tzinfo, app: Celery, _name: str) -> BaseSchedule:
    moment = zones.time_from(text)
    return rule.clocked(moment if moment.tzinfo else moment.replace(tzinfo=zone), app=app)


def _solar(text: str, _zone: tzinfo, app: Celery, _name: str) -> BaseSchedule:
    parts = [part.strip() for part in text.split(",")]
    if len(parts) != 3:
        raise ValueError(f"{text!r} is not EVENT,LAT,LON")
    event, latitude, longitude = parts
    return sun.make_solar(event, float(latitude), float(longitude), app=app)


def _seconds_of(when: schedule) -> float:
    length: timedelta = max(when.run_every, next_run.MIN_EVERY)
    return length.total_seconds()


def _every_text(when: schedule) -> str:
    return f"{plain_number(_seconds_of(when))}{' relative' if when.relative else ''}"


def _cron_text(when: crontab) -> str:
    fields = []
    for name in CRON_FIELDS:
        written = getattr(when, f"_orig_{name}")
        is_list = isinstance(written, (list, set, frozenset, tuple))
        fields.append(",".join(map(str, written)) if is_list else str(written).replace(" ", ""))
    return " ".join(fields)


class Rule(NamedTuple):
    """How people write the schedules of these types: in commands, files, forms and the API.

    ``placeholder`` stands for the text in a command line. Several ``lines`` may be given.
    """

    types: tuple[type, ...]
    parse: Callable[[str, tzinfo, Any, str], BaseSchedule]
    write: Callable[[Any], str]
    placeholder: str
    example: str
    description: str
    lines: bool = False


RULES: Final = {
    "every": Rule(
        (schedule,),
        _every,
        _every_text,
        "DURATION",
        "5m",
        "Interval in seconds, or with the units w, d, h, m, s: 30, 5m, 1h30m, 1w.",
    ),
    "cron": Rule(
        (crontab,),
        _cron,
        _cron_text,
        "FIELDS",
        "*/5 8-18 * * mon-fri",
        "Crontab: minute, hour, day of month, month, day of week; or @hourly, @daily, @weekly, "
        "@monthly, @yearly. H stands for a value that depends on the entry name.",
    ),
    "rrule": Rule(
        (rule.rrule, rule.rruleset),
        _rrule,
        lambda when: when.to_ical(),
        "LINE",
        "RRULE:FREQ=DAILY;BYHOUR=9;BYMINUTE=0",
        "RFC 5545 lines with DTSTART, RRULE, RDATE or EXDATE.",
        lines=True,
    ),
    "at": Rule(
        (rule.clocked,),
        _at,
        lambda when: when.clocked_time.isoformat(),
        "TIME",
        "2026-12-31T09:00",
        "Run once, at this time (ISO 8601).",
    ),
    "solar": Rule(
        (solar,),
        _solar,
        lambda when: f"{when.event},{when.lat},{when.lon}",
        "EVENT,LAT,LON",
        "sunset,52.52,13.41",
        "Solar event, with latitude and longitude in degrees.",
    ),
}

KINDS: Final = tuple(RULES)


def rule_of(when: Any) -> tuple[str, str] | None:
    """Return (kind, text) as :func:`parse_rule` parses it, or None if no rule fits."""
    for kind, one in RULES.items():
        if isinstance(when, one.types):
            with suppress(ValueError):  # RFC 5545 cannot represent all rules
                return kind, one.write(when)
    return None


def schedule_text(when: Any) -> str:
    """Return a schedule as one line, in the syntax of the command-line options.

    Examples: ``every 30 s``, ``cron 0 9 * * *``, ``at 2027-01-01T09:00:00+00:00``.
    """
    if isinstance(when, schedule):
        relative = " (relative)" if when.relative else ""
        return f"every {exact_duration(_seconds_of(when))}{relative}"
    kind, text = rule_of(when) or ("", str(when))
    if kind == "rrule":
        start, *rest = text.splitlines()
        return " ".join((*rest, start))  # DTSTART is printed after the rules
    return f"{kind} {text}".lstrip()
