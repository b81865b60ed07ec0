"""How values look in the templates."""

from __future__ import annotations

from datetime import datetime, tzinfo
from typing import Any, Final
from urllib.parse import quote, urlencode

from flask import Flask, current_app, request, url_for
from markupsafe import Markup, escape

from redbeat import __version__
from redbeat.calendar.zones import UTC, from_timestamp, zone_key, zone_named
from redbeat.presentation.describe import call_text, iso, last_run, schedule_text
from redbeat.presentation.rule_text import has_own_zone
from redbeat.presentation.rules import in_words
from redbeat.presentation.text import duration
from redbeat.storage.wire import Row

__all__ = (
    "app_zone",
    "entry_url",
    "install",
    "now_of",
    "rule_words",
    "texts_of",
    "zone",
    "zone_name",
)

#: Characters of a text that are shown.
TEXT: Final = 4000


def texts_of(row: Row) -> dict[str, str]:
    """Return what is stored of an entry that cannot be read, as far as it can be shown."""
    found = {"definition": row.definition, "policy": row.policy, "meta": row.meta}
    if row.definition is None:
        return {"key": row.problem}
    return {name: clean(text) for name, text in found.items() if text}


def clean(text: str) -> str:
    """Return a text of any origin in what a page can hold, and not too much of it."""
    shown = text[:TEXT].encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return shown + ("…" if len(text) > TEXT else "")


#: Seconds after which a run that is due counts as late on the page, which looks every few seconds.
LATE: Final = 10

#: Seconds between two clocks that nobody has to know of.
IN_STEP: Final = 0.01

#: The cookie in which the script tells the zone of the viewer.
ZONE_COOKIE: Final = "redbeat_zone"


def app_zone() -> tzinfo:
    """Return the zone of the app, in which rules without one are read."""
    found: tzinfo = current_app.extensions["celery"].timezone
    return found


def zone() -> tzinfo:
    """Return the zone of the viewer, that of the app where no script has told it."""
    try:
        return zone_named(request.cookies.get(ZONE_COOKIE, ""))
    except ValueError:
        return app_zone()


def zone_name(of: tzinfo | None = None) -> str:
    """Return the name of a zone, of that of the viewer unless one is given."""
    of = of or zone()
    return zone_key(of) or str(of)


def now_of(seconds: float) -> datetime:
    """Return the instant of UNIX seconds, now for 0."""
    return from_timestamp(seconds) if seconds else datetime.now(UTC)


def rule_words(entry: Any) -> Markup:
    """Return when an entry runs, in words, with the zone in which its rule is read, in grey."""
    own = has_own_zone(entry.schedule)
    name = None if own else entry.timezone or zone_name(app_zone())
    text = in_words(entry.schedule, name)
    words, _, last = text.rpartition(", ")
    if not words or last != name:
        return escape(text)
    return Markup('{}, <span class="none">{}</span>').format(words, last)


def clock_words(offset: float) -> str:
    """Return by how much the clock of this host is ahead of that of Redis, in seconds."""
    size = abs(offset)
    if size < IN_STEP:
        return f"in step with Redis, within {IN_STEP * 1000:.0f} ms"
    return f"this host is {late(size)} {'ahead of' if offset > 0 else 'behind'} Redis"


def late(seconds: float) -> str:
    """Return a short time as charts do: in milliseconds below a second."""
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else duration(seconds)


def to_the_second(instant: datetime, of: tzinfo) -> str:
    """Return an instant in a zone, as the script shows it."""
    return instant.astimezone(of).strftime("%Y-%m-%d %H:%M:%S")


def until(instant: datetime, now: datetime) -> str:
    """Return how far away an instant is."""
    seconds = round((instant - now).total_seconds())
    return f"in {duration(seconds)}" if seconds >= 0 else f"{duration(-seconds)} ago"


def due(instant: datetime, now: datetime) -> str:
    """Return how far away a run is: one that has just become due is now."""
    seconds = round((instant - now).total_seconds())
    if seconds > 0:
        return f"in {duration(seconds)}"
    return "now" if seconds > -LATE else f"{duration(-seconds)} late"


def entry_url(name: str, endpoint: str = "entries.show") -> str:
    """Return the address of an entry, or of something to do with it.

    The name is in the query, where anything can be: in a path some names could not be reached.
    """
    query = quote(name.encode("utf-8", "backslashreplace"), safe="")
    return f"{url_for(endpoint)}?name={query}"


def with_query(**changes: Any) -> str:
    """Return the query of this page with some of its fields changed; None removes one."""
    fields = {**request.args.to_dict(), **changes}
    return "?" + urlencode(
        {name: value for name, value in fields.items() if value not in (None, "")}
    )


def install(app: Flask) -> None:
    """Make all of this known to the templates of an app."""
    app.jinja_env.filters.update(
        call=call_text,
        clock_words=clock_words,
        due=due,
        duration=duration,
        iso=iso,
        last_run=last_run,
        late=late,
        local=lambda instant: to_the_second(instant, zone()),
        minute=lambda instant: to_the_second(instant, zone())[:-3],
        moment=to_the_second,
        rule=lambda entry: schedule_text(entry.schedule),
        until=until,
        words=rule_words,
    )
    app.jinja_env.globals.update(
        app_zone=app_zone,
        entry_url=entry_url,
        late_after=LATE,
        zone_cookie=ZONE_COOKIE,
        with_query=with_query,
        version=__version__,
        zone_name=zone_name,
        now_of=now_of,
    )
    app.jinja_env.trim_blocks = app.jinja_env.lstrip_blocks = True
