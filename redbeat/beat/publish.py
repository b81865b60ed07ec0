"""Makes the message of a run, and lets Celery publish it as its own scheduler would."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from celery.beat import SchedulingError

from redbeat.beat.broker import CheckedProducer
from redbeat.config import ensure_conf
from redbeat.entries.decide import task_id_of
from redbeat.entries.definition import TIMES, seconds_of
from redbeat.entries.lazy import evaluated
from redbeat.entries.run import Rule
from redbeat.entries.verdicts import Send
from redbeat.entry import check_allowed
from redbeat.settings import is_number

#: The message header with the entry's key.
#: Only messages of entries whose runs must not overlap have the header ``redbeat_overlap``.
OVERLAP_HEADER = "redbeat_overlap"

#: Kombu retries a failed publish once, without a pause.
#: One retry is enough if the broker had closed an idle connection.
#: If the retry fails too, a later tick sends the run.
ONE_RETRY: Final[dict[str, float]] = {
    "max_retries": 1,
    "interval_start": 0,
    "interval_step": 0,
    "interval_max": 0,
}

#: The timeout options that an entry may set, and their maximum in seconds.
#: The default timeout of a publish attempt is not longer than ``LONGEST_TIMEOUT``.
BOUNDED_OPTIONS = frozenset(("timeout", "confirm_timeout"))
LONGEST_TIMEOUT = 5.0


def headers_of(rule: Rule, send: Send, iso: str) -> dict[str, Any]:
    """Return the headers of the message of a run, without those in the options of its entry.

    ``iso`` is the nominal time of the run in ISO 8601. The headers are described in
    ``docs/messages.rst``.
    """
    headers: dict[str, Any] = {"scheduled_at": iso, "periodic_task_name": rule.name}
    if send.kind == "backfilled":
        headers["backfilled"] = True
    elif send.kind == "triggered":
        headers["triggered"] = True
    elif send.missed:
        headers["coalesced"] = send.missed
    if rule.policy.overlap != "allow":
        headers[OVERLAP_HEADER] = rule.key
    return headers


def options_of(
    given: Mapping[str, Any], headers: dict[str, Any], task_id: str | None, at_most_once: bool
) -> dict[str, Any]:
    """Return the arguments of ``apply_async`` for a run; the ``given`` ones of its entry win."""
    chosen = sendable_options(given) if given else {}
    options = retry_options(chosen, at_most_once)
    own = dict(chosen.get("headers") or {})  # RedBeat 2 also takes pairs
    options["headers"] = {**headers, **own, "celery_beat_task": True}
    if task_id:
        options["task_id"] = chosen.get("task_id") or task_id
    return options


def id_of(rule: Rule, send: Send, iso: str, prefix: str, identity: str) -> str:
    """Return the task id of a run, which is the same each time the run is sent."""
    if send.held is not None:
        return send.held.id
    if send.kind == "triggered":
        return task_id_of(prefix, rule.name, f"trigger {send.id}")
    return task_id_of(prefix, rule.name, iso, identity)


def publish(scheduler: Any, entry: Any, options: dict[str, Any], producer: Any) -> Any:
    """Publish the message of an entry or a rule, and return what Celery returns.

    If an argument of the task is a function, the message has what the function returns. Raises
    Celery's ``SchedulingError``, whose cause is the error of the broker or of user code,
    :exc:`LazyArgumentError` if a function among the arguments raises an error, and
    :exc:`NotAllowedError` if ``redbeat_task_allowlist`` does not allow the task.
    """
    app = scheduler.app
    check_allowed(ensure_conf(app), entry.task, options)
    args, kwargs = evaluated(entry.args, entry.kwargs)
    args, kwargs = list(args or ()), dict(kwargs or {})
    task = app.tasks.get(entry.task)
    if isinstance(producer, CheckedProducer):
        producer.times_by_host = times_by_host(task, options)
    try:
        if task:
            return task.apply_async(args, kwargs, producer=producer, **options)
        return scheduler.send_task(entry.task, args, kwargs, producer=producer, **options)
    except Exception as error:
        problem = f"Couldn't apply scheduled task {entry.name}: {error}"
        raise SchedulingError(problem) from error
    finally:
        if isinstance(producer, CheckedProducer):
            producer.times_by_host = ()


def times_by_host(task: Any, options: Mapping[str, Any]) -> list[str]:
    """Return which times of a message Celery computes from seconds, by the clock of this host."""
    expires = options.get("expires", getattr(task, "expires", None))
    names = ["expires"] if isinstance(expires, (int, float)) else []
    return names if options.get("countdown") is None else [*names, "eta"]


def sendable_options(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return message options in which all times have types that ``apply_async`` accepts.

    Invalid values are returned unchanged. An ``eta`` in seconds becomes a ``countdown``, but an
    existing ``countdown`` takes precedence, as in Celery.
    """
    if TIMES.keys().isdisjoint(options):
        return options
    sendable = dict(options)
    for name in TIMES.keys() & sendable.keys():
        sendable[name] = seconds_of(sendable[name])
    if is_number(sendable.get("eta")):
        seconds = sendable.pop("eta")
        sendable["countdown"] = sendable.get("countdown") or seconds
    return sendable


def retry_options(options: Mapping[str, Any], at_most_once: bool) -> dict[str, Any]:
    """Return ``apply_async`` options that limit how often and how long a publish is tried.

    A publish has two attempts. A publish has only one attempt if ``at_most_once`` is true, or if
    the entry's ``retry_policy`` sets ``max_retries`` to 0. Entries cannot increase the number of
    attempts. ``timeout`` and ``confirm_timeout`` are limited to :data:`LONGEST_TIMEOUT` seconds.
    Other fields of ``retry_policy`` are removed, because kombu would store these fields in the
    connection and apply them to all entries.
    """
    bounded = dict(options)
    for name in BOUNDED_OPTIONS & options.keys():
        if is_number(options[name]):
            bounded[name] = min(options[name], LONGEST_TIMEOUT)
    policy = bounded.pop("retry_policy", None)
    if at_most_once:
        bounded["retry"] = False
    else:
        retries = policy.get("max_retries") if isinstance(policy, Mapping) else None
        bounded["retry_policy"] = {**ONE_RETRY, "max_retries": 0} if retries == 0 else ONE_RETRY
    return bounded
