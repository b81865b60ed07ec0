"""Filters and functions for the templates, which format entries, times and durations."""

from __future__ import annotations

from datetime import datetime, tzinfo
from typing import Any, Final
from urllib.parse import quote, unquote, urlencode

from flask import Flask, current_app, flash, get_flashed_messages, request, url_for
from werkzeug.local import LocalProxy

from redbeat import __version__
from redbeat.calendar.zones import UTC, from_timestamp, zone_named
from redbeat.entries.status import Record
from redbeat.management.schedule import Schedule
from redbeat.presentation import rule_text, rules
from redbeat.presentation.describe import iso, last_run, outcome_text, overdue_text, timing_text
from redbeat.presentation.text import LATE, due, duration, in_zone, moment, until
from redbeat.printing import shortened
from redbeat.storage.rows import Row
from redbeat.storage.store import Store, store_of

#: The schedule of the dashboard that handles the current request.
schedule: Schedule = LocalProxy(lambda: current_app.extensions["schedule"])  # type: ignore[assignment]
#: The store of this schedule.
store: Store = LocalProxy(lambda: store_of(schedule.app))  # type: ignore[assignment]

#: Maximum number of characters that a page shows of a stored string.
MAX_TEXT: Final = 4000
#: Maximum number of entries that a user can select for one action.
MAX_SELECTED: Final = 500
#: Maximum number of characters of a message.
MAX_NOTICE: Final = 200


def texts_of(row: Row) -> dict[str, str]:
    if row.definition is None:
        return {"key": row.unreadable}
    return {name: shortened(text, MAX_TEXT) for name, text in row.texts.items()}


def notify(message: str, category: str = "done") -> None:
    """Show a message on the next page.

    It travels in a cookie, whose size is limited: a long message is cut, and earlier ones that no
    page has shown are dropped.
    """
    get_flashed_messages()
    flash(shortened(message, MAX_NOTICE), category)


def counted(count: int, noun: str, nouns: str = "") -> str:
    """Return a number with a noun, such as ``1 run`` or ``1,200 runs``."""
    return f"{count:,} {noun if count == 1 else nouns or noun + 's'}"


#: The cookie in which redbeat.js stores the time zone of the browser.
ZONE_COOKIE: Final = "redbeat_zone"


def app_zone() -> tzinfo:
    """Return the app's time zone, the default of rules."""
    timezone: tzinfo = schedule.app.timezone
    return timezone


def zone() -> tzinfo:
    """Return the browser's time zone, or the app's if it is unknown."""
    try:
        return zone_named(request.cookies.get(ZONE_COOKIE, ""))
    except ValueError:
        return app_zone()


def zone_name(of: tzinfo | None = None) -> str:
    """By default, that of the browser."""
    return rules.zone_label(of or zone())


def now_of(seconds: float) -> datetime:
    """Return the instant of a UNIX timestamp; 0 stands for the current time."""
    return from_timestamp(seconds) if seconds else datetime.now(UTC)


def rule_words(entry: Any) -> str:
    """Return the rule of an entry in English, with its time zone if the runs depend on it."""
    has_own_zone = rule_text.has_own_zone(entry.schedule)
    name = None if has_own_zone else entry.timezone or zone_name(app_zone())
    return rules.in_words(entry.schedule, name)


def late(seconds: float) -> str:
    """Return a lateness as text, below one second in milliseconds."""
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else duration(seconds)


def entry_url(name: str, endpoint: str = "entries.show", **values: Any) -> str:
    """Return the URL of an entry's page, or of another endpoint for this entry.

    The name is a query parameter, because some names, such as ``..``, don't work in a path.
    Surrogates in it stand for bytes that are not UTF-8, and become these bytes in the URL.
    """
    return f"{url_for(endpoint, **values)}?name={quote(name, safe='', errors='surrogateescape')}"


def name_of(record: Record) -> str:
    """Return the exact name, as the key has it."""
    return store.keys.name_of(record.key)


def quoted(name: str) -> str:
    """Return a name as the value of a form field; :func:`name_in` is the reverse.

    A form can only have UTF-8, but some names have other bytes.
    """
    return quote(name, safe="", errors="surrogateescape")


def name_in(text: str) -> str:
    return unquote(text, errors="surrogateescape")


def with_query(**changes: Any) -> str:
    """Return the query string of the request with changed fields; None removes one."""
    fields = {**request.args.to_dict(), **changes}
    query = {name: value for name, value in fields.items() if value not in (None, "")}
    return "?" + urlencode(query, errors="surrogateescape")


def install(app: Flask) -> None:
    filters = counted, due, duration, in_zone, iso, last_run, late, moment, quoted, until
    shared = app_zone, entry_url, name_of, with_query, zone_name, now_of
    app.jinja_env.filters.update({function.__name__: function for function in filters})
    app.jinja_env.globals.update({function.__name__: function for function in shared})
    app.jinja_env.filters.update(
        # redbeat.js has the same format.
        local=lambda instant: moment(instant, zone()),
        minute=lambda instant: moment(instant, zone())[:-3],
        outcome=outcome_text,
        overdue=overdue_text,
        rule=timing_text,
        words=rule_words,
    )
    app.jinja_env.globals.update(late_after=LATE, zone_cookie=ZONE_COOKIE, version=__version__)
    app.jinja_env.globals.update(most_selected=MAX_SELECTED)
    app.jinja_env.trim_blocks = app.jinja_env.lstrip_blocks = True
