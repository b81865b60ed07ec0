"""The JSON API of the dashboard, with its OpenAPI document, and the health checks.

The objects are those of the command line with ``--json``. The fields that a request sets are those
of a file of ``celery redbeat apply``. As in the pages, the name of an entry is a query parameter.
"""

from __future__ import annotations

import re
from typing import Any, Final

from flask import Blueprint, Response, abort, current_app, jsonify, request, url_for
from flask.typing import ResponseReturnValue
from redis.exceptions import RedisError
from werkzeug.exceptions import HTTPException

from redbeat import __version__
from redbeat.codec.stored import json_in
from redbeat.entries.pauses import digest
from redbeat.entries.policy import FIELDS as POLICY_FIELDS
from redbeat.entries.status import STATES
from redbeat.errors import ConflictError, DecodeError, InvalidEntryError
from redbeat.management.as_json import (
    entry_json,
    occurrence_json,
    problems_of,
    record_json,
    status_json,
)
from redbeat.management.find import SORTS, browse
from redbeat.presentation.describe import iso
from redbeat.presentation.rule_text import KINDS
from redbeat.storage.store import store_of
from redbeat.transfer.entry_file import CALL, FIELDS, change_entry, new_entry

from .auth import audit, user_name
from .entry import entry_name, entry_or_error, existing, get_or_404
from .list import query_of

__all__ = ("api", "health")

api = Blueprint("api", __name__, url_prefix="/api")
health = Blueprint("health", __name__)

#: Maximum number of entries, and of upcoming runs, of one response.
MAX_ITEMS: Final = 500
DEFAULT_ITEMS: Final = 50

#: Maximum lateness of a due entry in seconds, above which the status has a problem.
MAX_LATE: Final = 60.0

#: Fields that keep their value when a PUT leaves them out: a paused entry stays paused.
KEPT: Final = frozenset((*KINDS, "queue", "enabled", "task"))


def problem(code: int, message: str, field: str | None = None) -> tuple[Response, int]:
    """Return the response to a request that failed."""
    return jsonify(error={"field": field, "message": message}), code


@api.errorhandler(InvalidEntryError)
def _invalid(error: InvalidEntryError) -> ResponseReturnValue:
    return problem(422, error.problem, error.field)


@api.errorhandler(DecodeError)
def _unreadable(error: DecodeError) -> ResponseReturnValue:
    return problem(409, f"The entry cannot be read: {error}")


@api.errorhandler(ConflictError)
def _conflict(_error: ConflictError) -> ResponseReturnValue:
    return problem(409, "Somebody else has just changed the entry. Read it and try again.")


@api.errorhandler(RedisError)
def _redis_error(error: RedisError) -> ResponseReturnValue:
    return problem(503, f"Redis does not answer: {type(error).__name__}")


@api.errorhandler(HTTPException)
def _http_error(error: HTTPException) -> ResponseReturnValue:
    return problem(error.code or 500, error.description or error.name)


@api.before_request
def _only_json() -> ResponseReturnValue | None:
    """Refuse what a page of another site could make a browser send.

    A browser sends JSON to another site only if that site allows it, which the dashboard never
    does. Therefore the API needs no CSRF token.
    """
    if request.method in ("GET", "HEAD", "OPTIONS"):
        return None
    if request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
        return problem(403, "Requests from other sites are refused.")
    if request.method == "POST" and not request.is_json:
        return problem(415, "Send the header Content-Type: application/json.")
    return None


def _body() -> Any:
    """Return the JSON object in the body of the request, {} for an empty body."""
    text = request.get_data()
    try:
        body = json_in(text, "body") if text else {}
    except DecodeError as error:
        abort(400, f"The body {error.problem}")
    if not isinstance(body, dict):
        abort(400, "The body must be a JSON object.")
    return body


def _number(name: str, default: int) -> int:
    text = request.args.get(name, str(default))
    if not re.fullmatch("[0-9]{1,6}", text) or not 1 <= int(text) <= MAX_ITEMS:
        abort(400, f"{name}: must be a whole number from 1 to {MAX_ITEMS}, not {text!r:.60}")
    return int(text)


@api.get("/status")
def status() -> ResponseReturnValue:
    """Return the status of the schedule. Takes two round trips."""
    current = current_app.extensions["schedule"].status()
    return jsonify(status_json(current, list(problems_of(current, MAX_LATE))))


@api.get("/upcoming")
def upcoming() -> ResponseReturnValue:
    """Return the next runs of all entries."""
    runs = current_app.extensions["schedule"].upcoming(_number("limit", DEFAULT_ITEMS))
    return jsonify(runs=[{"name": name, "at": iso(at)} for at, name in runs])


@api.get("/entries")
def entries() -> ResponseReturnValue:
    """Return a page of entries, with the cursor of the next page."""
    schedule = current_app.extensions["schedule"]
    found = browse(
        schedule, query_of(request.args), request.args.get("after"), _number("limit", DEFAULT_ITEMS)
    )
    if found.cut and not found.after:
        abort(400, "sort: there are too many entries for this order; sort by name or due")
    return jsonify(entries=[record_json(each) for each in found.records], after=found.after)


@api.get("/entry")
def show() -> ResponseReturnValue:
    """Return an entry with its state and its runs, and its version in the header ``ETag``."""
    return _entry_response(entry_name())


def _entry_response(name: str, code: int = 200) -> ResponseReturnValue:
    _, row, record = get_or_404(name)
    if record.entry is None:
        return jsonify(record_json(record)), code
    entry = record.entry
    with existing(name):
        status, backfills = entry.status, entry.backfills
    response = jsonify(entry_json(entry, status, entry.history, backfills, row.static))
    response.set_etag(digest(*entry.seen_texts))
    return response, code


def _check_version(entry: Any) -> None:
    """Abort the request with 412 if the entry is not the one that ``If-Match`` names."""
    if request.if_match and digest(*entry.seen_texts) not in request.if_match:
        abort(412, "The entry has changed since it was read. Read it and try again.")


@api.put("/entry")
def put() -> ResponseReturnValue:
    """Create an entry, or replace its fields: a missing field gets its default."""
    schedule, name, table = current_app.extensions["schedule"], entry_name(), _body()
    try:
        entry = schedule[name]
    except KeyError:
        entry = None
    if entry is None:
        if request.if_match:
            abort(412, "The entry does not exist.")
        entry = new_entry(schedule.app, schedule.entry_class, name, table)
        entry.save(if_unchanged=True)
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
    entry.save(if_unchanged=True)
    audit("changed", name)
    return _entry_response(name)


@api.delete("/entry")
def delete() -> ResponseReturnValue:
    """Delete an entry and its history."""
    name = entry_name()
    _, row, record = get_or_404(name)
    if record.entry is not None:
        _check_version(record.entry)
    if not store_of(current_app.extensions["celery"]).delete(row.key):
        abort(404, f"There is no entry {name!r}.")
    audit("deleted", name)
    return "", 204


@api.get("/entry/history")
def history() -> ResponseReturnValue:
    """Return the last runs of an entry, the most recent first."""
    return jsonify(history=[occurrence_json(run) for run in entry_or_error(entry_name()).history])


@api.post("/entry/pause")
def pause() -> ResponseReturnValue:
    """Pause an entry; the body may have a ``note``."""
    name, note = entry_name(), _body().get("note")
    if note is not None and not isinstance(note, str):
        raise InvalidEntryError("note", f"must be a text, not {note!r:.60}")
    with existing(name):
        entry_or_error(name).pause(note or None, user_name())
    audit("paused", name)
    return _entry_response(name)


@api.post("/entry/resume")
def resume() -> ResponseReturnValue:
    """Resume an entry."""
    name = entry_name()
    with existing(name):
        entry_or_error(name).resume()
    audit("resumed", name)
    return _entry_response(name)


@api.post("/entry/trigger")
def trigger() -> ResponseReturnValue:
    """Request one run of an entry, and return its task id."""
    name = entry_name()
    with existing(name):
        task_id = entry_or_error(name).trigger()
    audit(f"triggered ({task_id})", name)
    return jsonify(task_id=task_id), 202


@health.get("/healthz")
def alive() -> ResponseReturnValue:
    """Return 200: the dashboard answers."""
    return Response("the dashboard is running\n", mimetype="text/plain")


@health.get("/readyz")
def ready() -> ResponseReturnValue:
    """Return 200 if Redis answers and the beats report no problem, otherwise 503 with the reason.

    Takes two round trips. The reason names no host, because this URL needs no credentials.
    """
    try:
        current = current_app.extensions["schedule"].status()
    except RedisError as error:
        why = f"Redis does not answer: {type(error).__name__}"
    else:
        why = "the beats publish nothing, see the page" if current.problem else ""
    code, text = (503, why) if why else (200, "Redis answers")
    return Response(f"{text}\n", code, mimetype="text/plain")


# -- OpenAPI ---------------------------------------------------------------------------------------

#: The JSON schema of each type of policy field.
SCHEMAS: Final[dict[str, dict[str, Any]]] = {
    "count": {"type": ["integer", "null"], "minimum": 1},
    "seconds": {"type": ["number", "string", "null"]},
    "instant": {"type": ["string", "null"], "format": "date-time"},
    "names": {"type": ["array", "string", "null"], "items": {"type": "string"}},
}
JSON_TYPES: Final[dict[type, str]] = {list: "array", dict: "object"}


def _policy_schema(name: str) -> dict[str, Any]:
    about = POLICY_FIELDS[name].metadata
    schema = dict(SCHEMAS.get(about["type"].name, {"type": ["string", "null"]}))
    if about["type"].choices:
        schema["enum"] = [*about["type"].choices, None]
    return {**schema, "description": about["description"]}


def _fields_schema() -> dict[str, Any]:
    """Return the JSON schema of the fields that PUT and PATCH set."""
    properties: dict[str, Any] = {
        "task": {"type": "string", "description": "The task to run."},
        **{kind: {"type": ["string", "number"]} for kind in KINDS},
        "rrule": {"type": ["string", "array"], "items": {"type": "string"}},
        **{name: {"type": [JSON_TYPES[kind], "null"]} for name, kind in CALL.items()},
        "queue": {"type": "string", "description": "The queue, which becomes an option."},
        "enabled": {"type": "boolean"},
        **{name: _policy_schema(name) for name in FIELDS if name in POLICY_FIELDS},
    }
    return {"type": "object", "additionalProperties": False, "properties": properties}


NAME: Final = {"name": "name", "in": "query", "required": True, "schema": {"type": "string"}}
LIMIT: Final = {
    "name": "limit",
    "in": "query",
    "schema": {"type": "integer", "minimum": 1, "maximum": MAX_ITEMS, "default": DEFAULT_ITEMS},
}
LIST_PARAMETERS: Final = [
    *(
        {"name": name, "in": "query", "schema": {"type": "string"}, "description": text}
        for name, text in (
            ("q", "Part of a name, or a pattern such as billing-*."),
            ("task", "Part of the name of a task, or a pattern."),
            ("after", "The cursor of the previous page."),
        )
    ),
    {"name": "state", "in": "query", "schema": {"type": "string", "enum": list(STATES)}},
    {"name": "static", "in": "query", "schema": {"type": "string", "enum": ["static", "dynamic"]}},
    {"name": "sort", "in": "query", "schema": {"type": "string", "enum": list(SORTS)}},
    LIMIT,
]
MATCH: Final = {
    "name": "If-Match",
    "in": "header",
    "schema": {"type": "string"},
    "description": "The ETag of the entry; another version is not changed, and gives 412.",
}


def _operation(view: Any, parameters: list[Any], code: str = "200", body: Any = None) -> Any:
    """Return the description of an operation; its text is the docstring of its view."""
    schema = {"$ref": "#/components/schemas/Object"}
    answer: dict[str, Any] = {"description": "Success"}
    if code != "204":
        answer["content"] = {"application/json": {"schema": schema}}
    operation = {
        "operationId": view.__name__,
        "summary": (view.__doc__ or "").partition("\n")[0],
        "parameters": parameters,
        "responses": {code: answer, "default": {"$ref": "#/components/responses/Error"}},
    }
    if body is not None:
        operation["requestBody"] = {"content": {"application/json": {"schema": body}}}
    return operation


def document(root: str) -> dict[str, Any]:
    """Return the OpenAPI document; ``root`` is the URL of the API."""
    fields = {"$ref": "#/components/schemas/Fields"}
    note = {"type": "object", "properties": {"note": {"type": "string"}}}
    nothing = {"type": "object"}
    put_operation = _operation(put, [NAME, MATCH], "200", fields)
    put_operation["responses"]["201"] = {"description": "Created"}
    return {
        "openapi": "3.1.0",
        "info": {"title": "RedBeat", "version": __version__},
        "servers": [{"url": root}],
        "paths": {
            "/status": {"get": _operation(status, [])},
            "/upcoming": {"get": _operation(upcoming, [LIMIT])},
            "/entries": {"get": _operation(entries, LIST_PARAMETERS)},
            "/entry": {
                "get": _operation(show, [NAME]),
                "put": put_operation,
                "patch": _operation(patch, [NAME, MATCH], "200", fields),
                "delete": _operation(delete, [NAME, MATCH], "204"),
            },
            "/entry/history": {"get": _operation(history, [NAME])},
            "/entry/pause": {"post": _operation(pause, [NAME], "200", note)},
            "/entry/resume": {"post": _operation(resume, [NAME], "200", nothing)},
            "/entry/trigger": {"post": _operation(trigger, [NAME], "202", nothing)},
            "/openapi.json": {"get": _operation(openapi, [])},
        },
        "components": {
            "schemas": {
                "Fields": _fields_schema(),
                "Object": {"type": "object"},
                "Error": {
                    "type": "object",
                    "properties": {
                        "error": {
                            "type": "object",
                            "properties": {
                                "field": {"type": ["string", "null"]},
                                "message": {"type": "string"},
                            },
                        }
                    },
                },
            },
            "responses": {
                "Error": {
                    "description": "What is wrong, and the field that caused it.",
                    "content": {
                        "application/json": {"schema": {"$ref": "#/components/schemas/Error"}}
                    },
                }
            },
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic"},
                "bearer": {"type": "http", "scheme": "bearer"},
            },
        },
        "security": [{}, {"basic": []}, {"bearer": []}],
    }


@api.get("/openapi.json")
def openapi() -> ResponseReturnValue:
    """Return this document."""
    return jsonify(document(url_for("api.openapi").removesuffix("/openapi.json")))
