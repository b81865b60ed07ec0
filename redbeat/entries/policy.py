"""The policy of an entry: start and end time, limits, misfires, jitter and overlap."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from datetime import datetime, tzinfo
from functools import lru_cache, partial
from inspect import Parameter, signature
from numbers import Integral, Real
from typing import Any, Final, Literal, TypedDict, TypeVar, get_args

from redbeat.calendar.zones import UTC, as_utc, time_from, zone_key, zone_named
from redbeat.codec.stored import MAX_WHOLE, is_valid_text
from redbeat.errors import InvalidEntryError
from redbeat.schedules.calendars import OnExcluded

OnFinish = Literal["keep", "disable", "delete"]
Overlap = Literal["allow", "skip", "buffer_one"]
Coalesce = Literal["latest", "earliest", "all"]
Delivery = Literal["at_least_once", "at_most_once"]

MAX_CALENDARS: Final = 20
MAX_CATCH_UP: Final = 1000


_zone = lru_cache(maxsize=256)(zone_named)


def _timezone(name: str, value: Any) -> str:
    key = value if isinstance(value, str) else zone_key(value)
    if value is UTC:
        key = "UTC"
    if not key:
        raise InvalidEntryError(name, f"{value!r:.60} is not the name of a zone; use an IANA name")
    try:
        _zone(key)
    except ValueError as error:
        raise InvalidEntryError(name, str(error)) from error
    return key


def _instant(name: str, value: Any) -> datetime:
    if isinstance(value, str):  # other programs store times as ISO 8601
        with suppress(ValueError):
            value = time_from(value)
    if not isinstance(value, datetime):
        raise InvalidEntryError(name, f"must be a datetime or ISO 8601, not {value!r:.60}")
    return in_utc(name, value)


def in_utc(name: str, moment: datetime) -> datetime:
    """Convert the argument ``name`` to UTC; a naive datetime counts as UTC.

    Raises :exc:`InvalidEntryError` if it isn't a datetime, or outside of the years 1 to 9999.
    """
    if not isinstance(moment, datetime):
        raise InvalidEntryError(name, f"must be a datetime, not {moment!r:.60}")
    try:
        return as_utc(moment if moment.tzinfo else moment.replace(tzinfo=UTC))
    except OverflowError as error:
        problem = f"{moment.isoformat()} is not between the years 1 and 9999 in UTC; correct it"
        raise InvalidEntryError(name, problem) from error
    except ValueError as error:
        raise InvalidEntryError(name, str(error)) from error


def _count(name: str, value: Any, most: int = MAX_WHOLE) -> int:
    number = int(value) if isinstance(value, Integral) and value is not True else 0
    if number < 1:
        raise InvalidEntryError(name, f"must be a whole number above 0, not {value!r:.60}")
    if number > most:
        raise InvalidEntryError(name, f"must be at most {most}, not {value!r:.60}")
    return number


def _seconds(name: str, value: Any, positive: bool = False) -> float:
    number = not isinstance(value, bool) and isinstance(value, Real)
    if not number or not 0 <= value < 1e9:
        problem = f"must be a number of seconds from 0 to 1e9, not {value!r:.60}"
        raise InvalidEntryError(name, problem)
    if positive and not value:
        raise InvalidEntryError(name, "must be above 0 seconds")
    return float(value)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidEntryError(name, f"must be a non-empty text, not {value!r:.60}")
    return value


def _names(name: str, value: Any) -> tuple[str, ...]:
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, (list, tuple)) or not all(
        isinstance(one, str) and is_valid_text(one) for one in names
    ):
        raise InvalidEntryError(name, f"must be a name or a list of names, not {value!r:.60}")
    names = tuple(one.strip() for one in names)
    if not all(names) or len(names) > MAX_CALENDARS:
        raise InvalidEntryError(name, f"must be 1 to {MAX_CALENDARS} names, not {value!r:.60}")
    return names


@dataclass(frozen=True, slots=True)
class FieldType:
    """A type such as ``zone``, ``instant`` or ``seconds``.

    ``check(name, value)`` returns the value in its standard form, or raises
    :exc:`InvalidEntryError`.
    """

    name: str
    check: Callable[[str, Any], Any]
    choices: tuple[str, ...] = ()


def one_of(literal: Any) -> FieldType:
    choices: tuple[str, ...] = get_args(literal)

    def check(name: str, value: Any) -> str:
        if value not in choices:
            problem = f"must be one of {', '.join(choices)}, not {value!r:.60}"
            raise InvalidEntryError(name, problem)
        return choices[choices.index(value)]

    return FieldType("choice", check, choices)


ZONE: Final = FieldType("zone", _timezone)
INSTANT: Final = FieldType("instant", _instant)
COUNT: Final = FieldType("count", _count)
SECONDS: Final = FieldType("seconds", _seconds)
POSITIVE_SECONDS: Final = FieldType("seconds", partial(_seconds, positive=True))
TEXT: Final = FieldType("text", _text)


def _field(default: Any, type_: FieldType, example: str, description: str) -> Any:
    about = {"type": type_, "example": example, "description": description}
    return field(default=default, metadata=about)


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules that decide which occurrences of an entry run, and when it is finished.

    The fields also describe the attributes of entries, the options of the command line, and the
    fields of the form and the API.
    """

    timezone: str | None = _field(
        None,
        ZONE,
        "Europe/Paris",
        "Time zone of the schedule and of times without UTC offset; default: the app's time zone.",
    )
    start_time: datetime | None = _field(
        None, INSTANT, "2026-12-01T00:00", "The entry does not run before this time (ISO 8601)."
    )
    end_time: datetime | None = _field(
        None, INSTANT, "2026-12-31T23:59", "The entry does not run after this time (ISO 8601)."
    )
    max_runs: int | None = _field(None, COUNT, "10", "Finish the entry after this number of runs.")
    on_finish: OnFinish = _field(
        "keep", one_of(OnFinish), "delete", "What to do with the entry when no run is left."
    )
    misfire_grace_time: float | None = _field(
        None, SECONDS, "60", "Skip a run that is late by more than this time."
    )
    coalesce: Coalesce = _field(
        "latest", one_of(Coalesce), "latest", "Which runs to send after several runs were missed."
    )
    catch_up_limit: int | None = _field(
        None,
        FieldType("count", partial(_count, most=MAX_CATCH_UP)),
        "100",
        "With coalesce all, send at most this number of missed runs, and skip older runs.",
    )
    jitter: float = _field(
        0.0, SECONDS, "10", "Delay each run by a different time, up to this maximum."
    )
    spread: float = _field(
        0.0,
        SECONDS,
        "3600",
        "Delay all runs by an offset up to this maximum; the entry's name determines the offset.",
    )
    exclude: tuple[str, ...] = _field(
        (),
        FieldType("names", _names),
        "de-holidays",
        "Calendars, separated by commas; the entry does not run on days in these calendars.",
    )
    on_excluded: OnExcluded = _field(
        "skip",
        one_of(OnExcluded),
        "next",
        "Skip a run on an excluded day, or move the run to the next or previous allowed day.",
    )
    overlap: Overlap = _field(
        "allow",
        one_of(Overlap),
        "allow",
        "What to do if the previous run has not ended; buffer_one waits until that run ends.",
    )
    overlap_timeout: float = _field(
        3600.0,
        POSITIVE_SECONDS,
        "3600",
        "After this time, a run counts as ended even if no worker reported the end.",
    )
    delivery: Delivery | None = _field(
        None,
        one_of(Delivery),
        "at_most_once",
        "Delivery guarantee if a beat dies during sending; default: the app's redbeat_delivery.",
    )
    pause_after_failures: int | None = _field(
        None, COUNT, "3", "Pause the entry after this number of failed runs in a row."
    )
    expect_within: float | None = _field(
        None, POSITIVE_SECONDS, "26h", "Report a problem if no run succeeded within this time."
    )
    description: str | None = _field(
        None, TEXT, "'Invoices of the day'", "The purpose of the entry, as a text for people."
    )
    managed_by: str | None = _field(
        None, TEXT, "billing", "The value of managed_by in the file that manages the entry."
    )

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Policy:
        """None stands for the default. Raises :exc:`InvalidEntryError` that names a bad field."""
        checked = {
            name: FIELDS[name].metadata["type"].check(name, value)
            for name, value in values.items()
            if value is not None
        }
        policy = cls(**checked) if checked else DEFAULT
        policy._check_together()
        return policy

    def _check_together(self) -> None:
        if self.start_time and self.end_time and self.end_time < self.start_time:
            raise InvalidEntryError("end_time", "is before start_time")
        if self.coalesce == "all" and self.catch_up_limit is None:
            problem = "is missing; coalesce='all' needs a bound, such as 100"
            raise InvalidEntryError("catch_up_limit", problem)
        if self.coalesce != "all" and self.catch_up_limit is not None:
            raise InvalidEntryError("catch_up_limit", "is only valid with coalesce='all'")
        if self.on_excluded != "skip" and not self.exclude:
            raise InvalidEntryError("on_excluded", "needs a calendar name in the field exclude")

    @property
    def field_of_reports(self) -> str | None:
        """The name of a field that needs workers to report the ends of runs, if one is set."""
        if self.overlap != DEFAULT.overlap:
            return "overlap"
        names = ("pause_after_failures", "expect_within")
        return next((name for name in names if getattr(self, name) is not None), None)

    def non_defaults(self) -> dict[str, Any]:
        pairs = ((name, getattr(self, name)) for name in FIELDS)
        return {name: value for name, value in pairs if value != getattr(DEFAULT, name)}

    @property
    def zone(self) -> tzinfo | None:
        return None if self.timezone is None else _zone(self.timezone)


#: An entry has an argument and an attribute for each field.
FIELDS: Final = {field.name: field for field in fields(Policy)}

DEFAULT: Final = Policy()


class Arguments(TypedDict, total=False):
    """An entry's arguments for the fields of its policy."""

    timezone: str | tzinfo | None
    start_time: datetime | str | None
    end_time: datetime | str | None
    max_runs: int | None
    on_finish: OnFinish | None
    misfire_grace_time: float | None
    coalesce: Coalesce | None
    catch_up_limit: int | None
    jitter: float | None
    spread: float | None
    exclude: Iterable[str] | None
    on_excluded: OnExcluded | None
    overlap: Overlap | None
    overlap_timeout: float | None
    delivery: Delivery | None
    pause_after_failures: int | None
    expect_within: float | None
    description: str | None
    managed_by: str | None


F = TypeVar("F", bound=Callable[..., Any])


def spelled_out(arguments: Any, **defaults: Any) -> Callable[[F], F]:
    """Let ``help()`` and the manual show the keys of a typed dict in place of ``**fields``.

    Type checkers and editors read ``Unpack`` in the annotation themselves.
    """

    def decorate(function: Any) -> Any:
        given = signature(function)
        *parameters, _fields = given.parameters.values()
        for name, type_ in arguments.__annotations__.items():
            default = defaults.get(name, getattr(DEFAULT, name, None))
            annotation = getattr(type_, "__forward_arg__", type_)
            keyword = Parameter(
                name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation
            )
            parameters.append(keyword)
        function.__signature__ = given.replace(parameters=parameters)
        return function

    return decorate


class Attributes:
    """An entry's attributes for the fields of its policy."""

    timezone: str | None
    start_time: datetime | None
    end_time: datetime | None
    max_runs: int | None
    on_finish: OnFinish
    misfire_grace_time: float | None
    coalesce: Coalesce
    catch_up_limit: int | None
    jitter: float
    spread: float
    exclude: tuple[str, ...]
    on_excluded: OnExcluded
    overlap: Overlap
    overlap_timeout: float
    delivery: Delivery | None
    pause_after_failures: int | None
    expect_within: float | None
    description: str | None
    managed_by: str | None


# An entry that doesn't set a field reads the default from its class.
for _name in FIELDS:
    setattr(Attributes, _name, getattr(DEFAULT, _name))
