"""The stored definition and policy of an entry: encoding, decoding and checks.

A lazy argument (``BeatLazyFunc``) is a function in ``beat_schedule`` that a beat calls for each
run. Redis can't store it, so the definition has a placeholder with its name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, Final

from celery.beat import BeatLazyFunc
from celery.schedules import BaseSchedule, schedule

from redbeat.calendar.zones import time_from
from redbeat.codec.stored import MAX_DEPTH, is_valid_text
from redbeat.codec.types import LazyArgument, function_of, path_text
from redbeat.decoder import decode, decode_schedule, encode
from redbeat.errors import DecodeError, InvalidEntryError, RedBeatError, described
from redbeat.printing import get_logger
from redbeat.schedules.next_run import MIN_EVERY, asks_itself
from redbeat.schedules.rule import rrule, with_zones, zone_extension
from redbeat.settings import is_number

from .policy import DEFAULT, Policy
from .policy import FIELDS as POLICY_FIELDS

logger = get_logger("celery.beat")

#: Larger numbers of seconds are probably UNIX times.
MAX_SECONDS: Final = 1e9

Check = tuple[Callable[[Any], bool], str]


def _none_or(*kinds: type) -> Callable[[Any], bool]:
    return lambda value: value is None or isinstance(value, kinds)


def _is_empty_or_text(value: Any) -> bool:
    return not value or isinstance(value, str)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value) and is_valid_text(value)


def _are_texts(value: Any) -> bool:
    return not value or (isinstance(value, (list, tuple)) and all(map(_is_text, value)))


def _are_headers(value: Any) -> bool:
    if not isinstance(value, (list, tuple)):
        return not value or isinstance(value, Mapping)
    # dict() also makes a header of an object with two fields, which the allowlist wouldn't see.
    pairs = [pair for pair in value if isinstance(pair, (list, tuple)) and len(pair) == 2]
    return len(pairs) == len(value) and all(isinstance(pair[0], str) for pair in pairs)


def _is_delivery_mode(value: Any) -> bool:
    return value is None or isinstance(value, int) or value in ("transient", "persistent")


def _is_duration(value: Any) -> bool:
    # RedBeat 2 stored negative times, too; stored_options() refuses them.
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return abs(value) < 1e10
    return value is None or isinstance(value, timedelta)


def _is_time(value: Any) -> bool:
    if not isinstance(value, str):
        return isinstance(value, datetime) or _is_duration(value)
    with suppress(ValueError):
        return not value or bool(time_from(value))
    return False


#: Options of ``apply_async`` that are times.
TIMES: Final[dict[str, Check]] = {
    "countdown": (_is_duration, "a number of seconds or a timedelta"),
    "eta": (_is_time, "a datetime, ISO 8601, a number of seconds or a timedelta"),
    "expires": (_is_time, "a number of seconds, a timedelta, a datetime or ISO 8601"),
}

#: A beat cannot send a message with an option that fails its check.
OPTIONS: Final[dict[str, Check]] = {
    **TIMES,
    "headers": (_are_headers, "an object"),
    "stamped_headers": (_are_texts, "a list of header names"),
    "queue": (_is_empty_or_text, "the name of a queue"),
    "serializer": (_is_empty_or_text, "the name of a serializer"),
    "compression": (_is_empty_or_text, "the name of a compression method"),
    "delivery_mode": (_is_delivery_mode, "1, 2, transient or persistent"),
}

#: Celery or the beat sets these for each message.
RESERVED: Final = frozenset(
    {"args", "body", "connection", "content_type", "declare", "kwargs", "name", "producer"}
    | {"publisher", "result_cls", "router", "task_type"}
)


FIELDS: dict[str, Check] = {
    "name": (_is_text, "a text that is not empty, without lone surrogates"),
    "task": (_is_text, "the name of a task, without lone surrogates"),
    "args": (_none_or(list, tuple), "a list or null"),
    "kwargs": (_none_or(dict), "an object"),
    "options": (_none_or(dict), "an object"),
    "schedule": (lambda value: isinstance(value, BaseSchedule), "a schedule"),
    "enabled": (lambda value: isinstance(value, bool), "true or false"),
}

REQUIRED = ("name", "task", "schedule")


def check_definition(definition: Mapping[str, Any]) -> None:
    for field in REQUIRED:
        if field not in definition:
            raise InvalidEntryError(field, "is missing; add this field")
    _check_fields("", definition, FIELDS)
    options = definition.get("options")
    for name in RESERVED.intersection(options) if options else ():
        problem = "is set by Celery for each message; remove this option"
        raise InvalidEntryError(f"options.{name}", problem)
    if options:
        _check_fields("options.", options, OPTIONS)


def _check_fields(path: str, values: Mapping[str, Any], checks: Mapping[str, Check]) -> None:
    for name, (is_valid, expected) in checks.items():
        if name in values and not is_valid(values[name]):
            problem = f"must be {expected}, not {values[name]!r:.60}"
            raise InvalidEntryError(f"{path}{name}", problem)


def encode_definition(definition: dict[str, Any], static: bool = False) -> str:
    """Return a definition as JSON; raises :exc:`InvalidEntryError` that names an invalid field.

    Only a ``static`` entry may have lazy arguments.
    """
    if type(definition.get("enabled", True)) is not bool:
        with suppress(Exception):  # some classes, such as arrays, are neither true nor false
            definition = {**definition, "enabled": bool(definition["enabled"])}
    check_definition(definition)
    if not static:
        refuse_functions(definition)
    options = stored_options(definition.get("options"))
    if options is not definition.get("options"):
        definition = {**definition, "options": options}
    return encode(definition, "")


def stored_options(options: Any) -> Any:
    """Timedeltas become numbers of seconds.

    Raises :exc:`InvalidEntryError` for a time that is empty, negative or a UNIX time.
    """
    if not options or TIMES.keys().isdisjoint(options):
        return options
    stored = {name: seconds_of(value) for name, value in options.items()}
    for name in TIMES.keys() & stored.keys():
        if stored[name] == "":  # other programs store it
            raise InvalidEntryError(f"options.{name}", f"must be {TIMES[name][1]}, not ''")
        if is_number(stored[name]) and not 0 <= stored[name] < MAX_SECONDS:
            raise InvalidEntryError(
                f"options.{name}",
                f"must be at least 0 and below 1e9 seconds, not {options[name]!r:.60}; "
                "for an instant use eta or expires with a datetime",
            )
    return stored


def seconds_of(value: Any) -> Any:
    return value.total_seconds() if isinstance(value, timedelta) else value


def decode_definition(
    text: str | bytes, schedule_of: Callable[[Any], BaseSchedule] = decode_schedule
) -> dict[str, Any]:
    """Return the constructor arguments in a stored definition.

    ``schedule_of`` makes the schedule from its stored form. Raises :exc:`DecodeError` that names an
    invalid field.
    """
    definition = decode(text, "definition", "schedule")
    if not isinstance(definition, dict):
        raise DecodeError("definition", f"must be an object, not {definition!r:.60}")
    if "schedule" in definition:
        try:
            definition["schedule"] = schedule_of(definition["schedule"])
        except DecodeError as error:
            unknown = sorted(definition.keys() - FIELDS.keys() - POLICY_FIELDS.keys())
            also = f"; RedBeat does not know the field {unknown[0]!r:.60}" if unknown else ""
            raise type(error)(error.field, error.problem + also) from error
    _accept_other_forms(definition)
    try:
        check_definition(definition)
    except InvalidEntryError as error:
        raise DecodeError(f"definition.{error.field}", error.problem) from error
    return definition


#: PHP programs may store an empty object as ``[]``, and Lua programs an empty list as ``{}``.
EMPTY: dict[str, Callable[[], Any]] = {"args": list, "kwargs": dict, "options": dict}


def _accept_other_forms(definition: dict[str, Any]) -> None:
    """RedBeat 2 accepts an integer name, any ``enabled``, and other empty fields."""
    if type(definition.get("name")) is int:
        definition["name"] = str(definition["name"])
    if "enabled" in definition:
        definition["enabled"] = bool(definition["enabled"])
    for field, empty in EMPTY.items():
        if definition.get(field) in ([], {}):
            definition[field] = empty()


def check_excluded(rule: Any, policy: Policy) -> None:
    if not policy.exclude:
        return
    if asks_itself(rule):
        problem = "has no effect on a schedule class with its own is_due(); remove exclude"
        raise InvalidEntryError("exclude", problem)
    if policy.on_excluded != "skip" and isinstance(rule, schedule):
        problem = "cannot move the runs of an interval to other days; use a crontab or a rule"
        raise InvalidEntryError("on_excluded", problem)


def warn_if_too_short(name: Any, value: Any) -> None:
    every = value.run_every if isinstance(value, schedule) and not asks_itself(value) else MIN_EVERY
    if every < MIN_EVERY:
        logger.warning(
            "beat: Entry %s runs every %s s, the shortest interval: its own, %s s, is too short",
            *(name, MIN_EVERY.total_seconds(), every.total_seconds()),
        )


def encode_policy(schedule: Any, policy: Policy = DEFAULT) -> str:
    """Return "" if all fields have their defaults.

    The policy is stored separately, because RedBeat 2 would refuse its fields in a definition.
    """
    if policy is DEFAULT and not isinstance(schedule, rrule):
        return ""
    extension = {**zone_extension(schedule), **policy.non_defaults()}
    return encode(extension, "policy") if extension else ""


def decode_policy(
    policy: str, definition: dict[str, Any], foreign: Collection[str] = ()
) -> dict[str, Any]:
    """Add the fields of a stored policy to ``definition``; raises :exc:`DecodeError`.

    A definition may also contain policy fields, except those in ``foreign``: the entry class uses
    these names for something else.
    """
    names = [name for name in POLICY_FIELDS if name not in foreign]
    definition.update(_checked(definition, names, "definition"))
    if not policy:
        return definition
    extension = decode(policy, "policy")
    if not isinstance(extension, dict):
        raise DecodeError("policy", f"must be an object, not {extension!r:.60}")
    if isinstance(definition.get("schedule"), rrule):
        definition["schedule"] = with_zones(definition["schedule"], extension)
    # Only RedBeat writes the stored policy, so its fields are never foreign.
    definition.update(_checked(extension, list(POLICY_FIELDS), "policy"))
    return definition


def _checked(data: dict[str, Any], names: list[str], source: str) -> dict[str, Any]:
    rules = {name: data[name] for name in names if name in data}
    most = rules.get("max_runs")
    if type(most) is int and most <= 0:  # other programs write "no limit" as 0 or -1
        rules["max_runs"] = None
    try:
        Policy.of(rules)
    except InvalidEntryError as error:
        raise DecodeError(f"{source}.{error.field}", error.problem) from error
    return rules


# -- lazy arguments -------------------------------------------------------------------------------

SCALARS: Final = frozenset({str, int, float, bool, type(None)})

Path = tuple["str | int", ...]


class LazyArgumentError(RedBeatError):
    """This process cannot compute a lazy argument."""


def refuse_functions(definition: Mapping[str, Any]) -> None:
    """Raise :exc:`InvalidEntryError` for a function: only static entries have lazy arguments."""

    def refuse(value: Any, path: Path) -> Any:
        if isinstance(value, BeatLazyFunc):
            problem = "only beat_schedule may use BeatLazyFunc; compute the value in the task"
            raise InvalidEntryError(path_text(path), problem)
        return value

    for name in ("args", "kwargs"):
        _walk(definition.get(name), (name,), refuse)


def resolved(value: Any, configured: Any, path: Path) -> Any:
    """Replace each :class:`LazyArgument` by its function.

    ``configured`` has the arguments of the entry in ``beat_schedule``. Raises
    :exc:`LazyArgumentError` if it has no function at the path of a placeholder.
    """

    def resolve(argument: Any, at: Path) -> Any:
        function = configured
        try:
            for step in at[len(path) :]:
                function = function[step]
        except (IndexError, KeyError, TypeError):
            function = None
        if isinstance(argument, BeatLazyFunc):
            return argument
        if not isinstance(function, BeatLazyFunc):
            raise LazyArgumentError(
                f"{path_text(at)} must be computed by {argument.function}, but the beat_schedule "
                "of this beat does not contain this function; start the beat with the "
                "beat_schedule that contains the entry, or save the entry with a plain value"
            )
        return function

    return _walk(value, path, resolve)


def evaluated(args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Call the functions; raises :exc:`LazyArgumentError` if one raises an error."""
    return _walk(args, ("args",), _call), _walk(kwargs, ("kwargs",), _call)


def _call(argument: BeatLazyFunc | LazyArgument, path: Path) -> Any:
    if isinstance(argument, LazyArgument):
        raise LazyArgumentError(f"only a beat can compute {path_text(path)}")
    try:
        return argument()
    except Exception as error:
        problem = f"{path_text(path)}: {function_of(argument)} failed: {described(error)}"
        raise LazyArgumentError(problem) from error


def _walk(value: Any, path: Path, replace: Callable[[Any, Path], Any]) -> Any:
    """Replace each lazy argument; without any, return ``value`` itself."""
    inner: dict[Any, Any]
    if isinstance(value, dict):
        inner = value
    elif isinstance(value, (list, tuple)):
        inner = dict(enumerate(value))
    else:
        lazy = isinstance(value, (BeatLazyFunc, LazyArgument))
        return replace(value, path) if lazy else value
    if SCALARS.issuperset(map(type, inner.values())) or len(path) > MAX_DEPTH:
        return value
    changed = {step: _walk(item, (*path, step), replace) for step, item in inner.items()}
    if all(changed[step] is item for step, item in inner.items()):
        return value
    return changed if isinstance(value, dict) else list(changed.values())
