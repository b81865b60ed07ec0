"""How values look in the templates."""

from __future__ import annotations

from datetime import datetime, tzinfo
from typing import Any, Final
from urllib.parse import quote, urlencode

from flask import Flask, current_app, request, url_for

from redbeat import __version__
from redbeat.calendar.zones import UTC, from_timestamp, zone_key
from redbeat.presentation.describing import call_text, iso, last_run, schedule_text
from redbeat.presentation.rule_text import has_own_zone
from redbeat.presentation.text import duration, moment

from .words import in_words

__all__ = ("entry_url", "install", "now_of", "rule_words", "zone", "zone_name")

#: Seconds after which a run that is due counts as late on the page, which looks every few seconds.
LATE: Final = 10


def zone() -> tzinfo:
    """Return the zone of the app, in which times are shown without a script."""
    found: tzinfo = current_app.extensions["celery"].timezone
    return found


def zone_name(of: tzinfo | None = None) -> str:
    """Return the name of a zone, of that of the app unless one is given."""
    of = of or zone()
    return zone_key(of) or str(of)


def now_of(seconds: float) -> datetime:
    """Return the instant of UNIX seconds, now for 0."""
    return from_timestamp(seconds) if seconds else datetime.now(UTC)


def rule_words(entry: Any) -> str:
    """Return when an entry runs, in words, with the zone in which its rule is read."""
    own = has_own_zone(entry.schedule)
    return in_words(entry.schedule, None if own else entry.timezone or zone_name())


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
        due=due,
        duration=duration,
        iso=iso,
        last_run=last_run,
        local=lambda instant: moment(instant, zone()),
        moment=moment,
        rule=lambda entry: schedule_text(entry.schedule),
        until=until,
        words=rule_words,
    )
    app.jinja_env.globals.update(
        entry_url=entry_url,
        with_query=with_query,
        version=__version__,
        zone_name=zone_name,
        now_of=now_of,
    )
    app.jinja_env.trim_blocks = app.jinja_env.lstrip_blocks = True
