"""The JSON API of the dashboard, with its OpenAPI document, and the health checks.

The objects are those of the command line with ``--json``, and requests set the same fields as the
files of ``celery redbeat apply``. The name of an entry is a query parameter, as on the pages.
"""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta
from importlib import resources
from itertools import islice
from typing import Any, Final

from flask import Blueprint, Response, abort, jsonify, request, url_for
from flask.typing import ResponseReturnValue
from redis.exceptions import RedisError

from redbeat import __version__
from redbeat.calendar.zones import UTC
from redbeat.codec.stored import json_in
from redbeat.entries import changes, policy
from redbeat.errors import ConflictError, DecodeError, InvalidEntryError
from redbeat.management import apply, as_json, find, forecast
from redbeat.management.doctor import examine
from redbeat.presentation.rule_text import KINDS, RULES, seconds_from
from redbeat.transfer.entry_file import FIELDS, TASK, change_entry, new_entry

from .auth import SAFE_METHODS, audit, problem
from .pages import act, entry_name, entry_or_error, existing, get_or_404, search_in
from .values import schedule

api = Blueprint("api", __name__, url_prefix="/api")
health = Blueprint("health", __name__)

#: Maximum number of entries, upcoming runs or findings in a response.
MAX_ITEMS: Final = 500
DEFAULT_ITEMS: Final = 50

#: Maximum length of a timeline in seconds.
MAX_SPAN: Final = 7 * 86_400

#: Fields that keep their stored values if a PUT request lacks them. Such a request resets
#: ``options``, which has the queue, so ``queue`` needs no reset.
KEPT: Final = frozenset((*KINDS, "queue", "enabled", "task"))


@api.errorhandler(InvalidEntryError)
def _invalid(error: InvalidEntryError) -> ResponseReturnValue:
    return problem(422, error.problem, field=error.field)


@api.errorhandler(DecodeError)
def _unreadable(error: DecodeError) -> ResponseReturnValue:
    return problem(409, f"The entry cannot be read: {error}")


@api.errorhandler(ConflictError)
def _conflict(_error: ConflictError) -> ResponseReturnValue:
    return problem(409, "Somebody else has just changed the entry. Read the entry and try again.")


@api.errorhandler(RedisError)
def _redis_error(error: RedisError) -> ResponseReturnValue:
    return problem(503, f"Redis does not answer: {type(error).__name__}")


@api.before_request
def _only_json() -> ResponseReturnValue | None:
    """Refuse requests that a page of another site could make a browser send (CSRF).

    A browser sends JSON to another site only if that site allows it. The dashboard never does, so
    the API needs no CSRF token.
    """
    # Flask-WTF's CSRF check requires a token from a session, which API clients don't have, and no
    # library of the dashboard checks Sec-Fetch-Site.
    if request.method in SAFE_METHODS:
        return None
    if request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
        return problem(403, "Requests from other sites are refused.")
    if request.method == "POST" and not request.is_json:
        return problem(415, "Send the header Content-Type: application/json.")
    return None


def _body() -> Any:
    text = request.get_data()
    try:
        body = json_in(text, "body") if text else {}
    except DecodeError as error:
        abort(400, f"The body {error.problem}")
    if not isinstance(body, dict):
        abort(400, "The body must be a JSON object.")
    return body


def _limit() -> int:
    text = request.args.get("limit", str(DEFAULT_ITEMS))
    if not re.fullmatch("[0-9]{1,6}", text) or not 1 <= int(text) <= MAX_ITEMS:
        abort(400, f"limit: must be a whole number from 1 to {MAX_ITEMS}, not {text!r:.60}")
    return int(text)


@api.get("/status")
def status() -> ResponseReturnValue:
    """Takes two round trips."""
    return jsonify(as_json.status_json(schedule.status()))


@api.get("/upcoming")
def upcoming() -> ResponseReturnValue:
    runs = schedule.upcoming(_limit())
    return jsonify(runs=[as_json.upcoming_json(at, name) for at, name in runs])


@api.get("/timeline")
def timeline() -> ResponseReturnValue:
    try:
        span = seconds_from(request.args.get("span", "1h"))
    except ValueError as error:
        raise InvalidEntryError("span", str(error)) from error
    if not 0 < span <= MAX_SPAN:
        raise InvalidEntryError("span", f"must be above 0 and at most {MAX_SPAN} seconds")
    now = datetime.now(UTC)
    minutes = forecast.minutes_between(now, now + timedelta(seconds=span))
    load = schedule.load(minutes, request.args.get("pattern", "*"), totals=True)
    return jsonify(as_json.timeline_json(minutes, load))


@api.get("/doctor")
def doctor() -> ResponseReturnValue:
    """See :func:`.examine`; nothing is repaired."""
    most = _limit()
    found = examine(schedule)
    findings = [as_json.finding_json(finding) for finding in islice(found, most + 1)]
    return jsonify(findings=findings[:most], complete=len(findings) <= most)


@api.get("/calendars")
def calendars() -> ResponseReturnValue:
    """Takes one round trip."""
    found = schedule.calendars
    return jsonify(calendars=[as_json.calendar_json(found[name]) for name in sorted(found)])


@api.get("/entries")
def entries() -> ResponseReturnValue:
    limit, after = _limit(), request.args.get("after")
    found = find.browse(schedule, *search_in(request.args), after, limit)
    return jsonify(entries=[as_json.record_json(each) for each in found.records], after=found.after)


@api.get("/entry")
def show() -> ResponseReturnValue:
    """Return an entry with its state and its runs; its version is the ``ETag``."""
    return _entry_response(entry_name())


def _entry_response(name: str, code: int = 200) -> ResponseReturnValue:
    _, row, record = get_or_404(name)
    if record.entry is None:
        return jsonify(as_json.unreadable_json(record, row)), code
    with existing(name):
        response = jsonify(as_json.entry_json(record.entry, row.static))
    response.set_etag(changes.digest(*record.entry.seen_texts))
    return response, code


def _check_version(entry: Any) -> None:
    """Abort with 412 if the entry's version doesn't match ``If-Match``."""
    if request.if_match and changes.digest(*entry.seen_texts) not in request.if_match:
        abort(412, "The entry has changed since it was read. Read the entry and try again.")


@api.put("/entry")
def put() -> ResponseReturnValue:
    """Create an entry, or replace the fields of a stored entry.

    A field that the body lacks gets its default. A stored entry keeps its schedule and ``enabled``.
    """
    name, table = entry_name(), _body()
    entry = schedule.get(name)
    if entry is None:
        if request.if_match:
            abort(412, "The entry does not exist.")
        entry = new_entry(schedule, name, table)
        apply.save_unchanged(entry)
        audit("created", name)
        return _entry_response(name, 201)
    if "*" in request.if_none_match:
        abort(412, "The entry exists.")
    if "task" not in table:
        raise InvalidEntryError("task", "is missing; add the name of the task")
    return _change(name, entry, {**dict.fromkeys(set(FIELDS) - KEPT), **table})


@api.patch("/entry")
def patch() -> ResponseReturnValue:
    """Change the fields in the body; null resets a field to its default."""
    name = entry_name()
    return _change(name, entry_or_error(name), _body())


def _change(name: str, entry: Any, table: dict[str, Any]) -> ResponseReturnValue:
    _check_version(entry)
    change_entry(entry, table)
    apply.save_unchanged(entry)
    audit("changed", name)
    return _entry_response(name)


@api.delete("/entry")
def delete() -> ResponseReturnValue:
    name = entry_name()
    _, _, record = get_or_404(name)
    if record.entry is not None:
        _check_version(record.entry)
    act("delete", name)
    return "", 204


@api.get("/entry/history")
def history() -> ResponseReturnValue:
    """Return the last runs of an entry, the most recent first."""
    name = entry_name()
    runs = entry_or_error(name).history
    return jsonify(history=[{"name": name, **as_json.occurrence_json(run)} for run in runs])


@api.post("/entry/pause", defaults={"action": "pause"})
@api.post("/entry/resume", defaults={"action": "resume"})
@api.post("/entry/trigger", defaults={"action": "trigger"})
def single(action: str) -> ResponseReturnValue:
    """Pause, resume or trigger an entry; the body of a pause may have a ``note``."""
    name = entry_name()
    note = _body().get("note") if action == "pause" else None
    if note is not None and not isinstance(note, str):
        raise InvalidEntryError("note", f"must be a text, not {note!r:.60}")
    task_id = act(action, name, note or None)
    if task_id is None:
        return _entry_response(name)
    return jsonify(name=name, action="triggered", task_id=task_id), 202


@health.get("/healthz")
def alive() -> ResponseReturnValue:
    return Response("the dashboard is running\n", mimetype="text/plain")


@health.get("/readyz")
def ready() -> ResponseReturnValue:
    """Return 200 if Redis answers and the beats report no problem, otherwise 503 and why.

    Takes two round trips. The reason has no host name, because clients without credentials can read
    it.
    """
    try:
        current = schedule.status()
    except RedisError as error:
        why = f"Redis does not answer: {type(error).__name__}"
    else:
        why = "the beats publish nothing; the dashboard shows the reason" if current.problem else ""
    code, text = (503, why) if why else (200, "Redis answers")
    return Response(f"{text}\n", code, mimetype="text/plain")


# -- OpenAPI ---------------------------------------------------------------------------------------

#: The JSON schemas of the types of policy fields; any other type is a string.
SCHEMAS: Final[dict[str, dict[str, Any]]] = {
    "count": {"type": "integer", "minimum": 1},
    "seconds": {"type": "number"},
    "instant": {"type": "string", "format": "date-time"},
    "names": {"type": "array", "items": {"type": "string"}},
}
KIND_OF: Final[dict[type, str]] = {str: "string", list: "array", dict: "object"}
#: The JSON types in whose place clients may send a string.
TEXT_TOO: Final = ("number", "array")


def _policy_schema(name: str, sent: bool) -> dict[str, Any]:
    """Return the JSON schema of a policy field, as requests have it if ``sent`` is true."""
    about = policy.FIELDS[name].metadata
    schema = {"type": "string", **SCHEMAS.get(about["type"].name, {})}
    schema |= {"enum": [*about["type"].choices]} if about["type"].choices else {}
    if sent:
        schema["type"] = [schema["type"], *["string"] * (schema["type"] in TEXT_TOO), "null"]
        if "enum" in schema:
            schema["enum"] += [None]
    return {**schema, "description": about["description"]}


def _sent_schema(name: str) -> dict[str, Any]:
    """Return the JSON schema of a field of a request."""
    if name in policy.FIELDS:
        return _policy_schema(name, True)
    if name in RULES:
        rule = RULES[name]
        lines = {"type": ["string", "array"], "items": {"type": "string"}}
        kinds = lines if rule.lines else {"type": ["string", "number"]}
        return {**kinds, "description": rule.description}
    field = TASK[name]
    kind = KIND_OF[field.type]
    return {
        "type": kind if name == "task" else [kind, "null"],
        "description": field.description,
    }


def document(root: str) -> dict[str, Any]:
    """Return the OpenAPI document; ``root`` is the URL of the API.

    The file ``openapi.json`` has all but the fields that describe an entry.
    """
    text = resources.files(__package__).joinpath("openapi.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    found["info"]["version"] = __version__
    found["servers"] = [{"url": root}]
    schemas = found["components"]["schemas"]
    schemas["Policy"]["properties"] = {name: _policy_schema(name, False) for name in policy.FIELDS}
    sent = {name: _sent_schema(name) for name in FIELDS if name != "enabled"}
    schemas["Fields"]["properties"] |= sent
    return found


@api.get("/openapi.json")
def openapi() -> ResponseReturnValue:
    return jsonify(document(url_for("api.openapi").removesuffix("/openapi.json")))
