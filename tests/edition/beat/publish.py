"""Lets Celery publish the message of a run, as its own scheduler would."""

from __future__ import annotations

from typing import Any

from celery.beat import SchedulingError

from redbeat.beat.publisher import OVERLAP_HEADER, retry_options, sendable_options
from redbeat.config import ensure_conf
from redbeat.entries.decide import task_id_of
from redbeat.entries.lazy import evaluated
from redbeat.errors import NotAllowedError
from tests.edition.plan import Send
from tests.edition.run import Rule


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
    rule: Rule, headers: dict[str, Any], task_id: str, at_most_once: bool
) -> dict[str, Any]:
    """Return the arguments of ``apply_async`` for a run; those of the entry take precedence."""
    chosen = sendable_options(rule.options) if rule.options else {}
    options = retry_options(chosen, at_most_once)
    own = chosen.get("headers") or {}
    options["headers"] = {**headers, **own, "celery_beat_task": True}
    options["task_id"] = chosen.get("task_id") or task_id
    return options


def id_of(rule: Rule, send: Send, iso: str, prefix: str, identity: str) -> str:
    """Return the task id of a run, which is the same each time the run is sent."""
    if send.held is not None:
        return send.held.id
    if send.kind == "triggered":
        return task_id_of(prefix, rule.name, f"trigger {send.id}")
    return task_id_of(prefix, rule.name, iso, identity)


def publish(scheduler: Any, rule: Rule, options: dict[str, Any], producer: Any) -> Any:
    """Publish the message of a run, and return what Celery returns.

    Raises Celery's ``SchedulingError``, whose cause is the error of the broker or of user code, and
    :exc:`NotAllowedError` if ``redbeat_task_allowlist`` does not allow the task.
    """
    app = scheduler.app
    allowlist = ensure_conf(app).task_allowlist
    refused = allowlist and allowlist.refusal(rule.task, options)
    if refused:
        raise NotAllowedError(*refused)
    args, kwargs = evaluated(rule.args, rule.kwargs)
    args, kwargs = list(args or ()), dict(kwargs or {})
    task = app.tasks.get(rule.task)
    try:
        if task:
            return task.apply_async(args, kwargs, producer=producer, **options)
        return scheduler.send_task(rule.task, args, kwargs, producer=producer, **options)
    except Exception as error:
        problem = f"Couldn't apply scheduled task {rule.name}: {error}"
        raise SchedulingError(problem) from error
