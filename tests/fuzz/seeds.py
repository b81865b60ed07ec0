"""The cases that found a defect: by the fuzzer, or by a person. A test runs each of them."""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

from tests.fuzz.vocabulary import TABLE

__all__ = ("SEEDS", "Seed")


class Seed(NamedTuple):
    """A case that found a defect: the surface, what was wrong, and the case."""

    surface: str
    title: str
    case: Any


DEFINITION: Final = b'{"name": "a", "task": "t", "schedule": {"__type__": "interval", "every": 60}}'
META: Final = (
    b'{"last_run_at": {"__type__": "datetime", "year": %s, "month": 11, "day": 23, "hour": 19, '
    b'"minute": 30, "second": 49, "microsecond": 5, "timezone": "UTC"}, "total_run_count": 3}'
)
NESTED: Final = b"[" * 100_000
#: A surrogate in UTF-8, which Python does not decode.
SURROGATE: Final = b"\xed\xa0\x80"


def entry(field: bytes, text: bytes) -> list[tuple[Any, ...]]:
    """Return the commands that store an entry with this content of a field."""
    return [
        ("HSET", b"redbeat:a", b"definition", DEFINITION),
        ("HSET", b"redbeat:a", field, text),
        ("ZADD", b"redbeat::schedule", "1", b"redbeat:a"),
    ]


def page(path: str, query: bytes) -> tuple[Any, ...]:
    """Return a GET request."""
    return "GET", path, query, b"", "", b""


STORED: Final = {
    "a long text in a field that scripts read blocked Redis for 22 seconds": entry(
        b"waits", b'{"a":' * 5000 + b" "
    ),
    **{
        f"a backfill with {what}": entry(b"inbox", b'[["backfill","%s"]]' % token)
        for what, token in {
            "the rate 10.0": b"r/10.0/1/9/0~3600/60~3600:1.000000",
            "the rate 1e-9": b"r/1e-9/1/9/0~3600/60~3600:1.000000",
            "the rate 0": b"r/0/1/9/0~3600/60~3600:1.000000",
            "the rate NaN": b"r/nan/1/9/0~3600/60~3600:1.000000",
            "a time that Lua cannot read": b"r/10/1/9/0~3600/60~3600:9_000_000_000",
        }.items()
    },
    "results without a number of seconds": [
        *entry(b"history", b'["1795462250 +5 sent x"]'),
        *entry(b"results", b'[["x","failed",Infinity,0,"",1795462260]]'),
    ],
    "the command backfill for a name that is not UTF-8": [
        (
            "HSET",
            b"redbeat:e16\xb9\x9d\x1e02",
            b"definition",
            DEFINITION.replace(b'"a"', rb'"e16\ufffd"'),
        ),
        ("ZADD", b"redbeat::schedule", "1", b"redbeat:e16\xb9\x9d\x1e02"),
    ],
    "a trigger that is not UTF-8 kept all entries from being sent": entry(
        b"inbox", b'[["trigger","\xe6\x86u|",1]]'
    ),
    "an inbox that ends with an empty line kept a tick going": entry(
        b"inbox", b'[["trigger",{},1],\n0.5,\n]'
    ),
    "a trigger of an entry with a score that no datetime can hold": [
        *entry(b"inbox", b'[["trigger","r3",1795462249.9]]'),
        ("ZADD", b"redbeat::schedule", "-1e300", b"redbeat:a"),
    ],
    "a calendar that does not exist": entry(b"policy", b'{"exclude": "1-0"}'),
    "nested brackets in the state": entry(b"beat_state", NESTED),
    "closed nested brackets in an inbox": entry(b"inbox", NESTED + b"]" * 100_000),
    "a huge number in the state": entry(b"beat_state", b'{"m":["","",""],"of":"","at":1e308}'),
    "a huge year in meta": entry(b"meta", META % (b"9" * 10)),
    "a hold of a run that ends in the year 56897905": entry(
        b"beat_state", b'{"of":"","hold":["scheduled",1.5,"x",1795462295462249.9,"",0]}'
    ),
    "a surrogate in the identity": entry(b"beat_state", rb'{"of":"","id":"\uda1c"}'),
    "a surrogate in an unknown field of the definition": [
        *entry(b"meta", META % b"2026"),
        ("HSET", b"redbeat:a", b"definition", rb'{"\uda1c": 1, ' + DEFINITION[1:]),
    ],
    "a count of 400 digits in max_runs": entry(b"policy", b'{"max_runs": %s}' % (b"9" * 400)),
    "the page of a key of another type": [
        ("XADD", b"redbeat:a", "*", "a", b"b"),
        ("ZADD", b"redbeat::schedule", "1", b"redbeat:a"),
    ],
    "the page of a name that is not UTF-8": [
        ("HSET", b"redbeat:e\xde1", b";", b"{}"),
        ("ZADD", b"redbeat::schedule", "1", b"redbeat:e\xde1"),
    ],
}

OWN: Final = {
    "an empty member kept a tick going": ("ZADD", b"redbeat::schedule", "1", b""),
    "a beat that was last seen in the year 14000": ("ZADD", b".redbeat::beats", "4e11", b"h-1-0"),
    "a beat that was last seen at infinity": ("ZADD", b".redbeat::beats", "inf", b"h-1-0"),
    "a beat with a surrogate": ("ZADD", b".redbeat::beats", "1", SURROGATE),
    "a note that is not UTF-8": (
        *("HSET", b".redbeat::quarantine", b"redbeat:a"),
        b'{"reason": "x", "di\xc8',
    ),
    "a digest in a note that is not UTF-8": (
        *("HSET", b".redbeat::quarantine", b"redbeat:a"),
        b'{"reason": "x", "since": 1795462250.0, "digest": "aaa\xff"}',
    ),
    "a note with nested brackets": ("HSET", b".redbeat::quarantine", b"redbeat:a", NESTED),
    "a count of 400 digits in the stats": (
        *("HSET", b".redbeat::stats", b"dispatched a"),
        b"9" * 400,
    ),
    "workers that report since infinity": ("HSET", b".redbeat::stats", b"reports_since", b"inf"),
    "an unreadable calendar": ("HSET", b".redbeat::calendars", b"de", b"[1"),
    "a calendar with nested brackets": ("HSET", b".redbeat::calendars", b"fr", NESTED),
    "a member of the schedule with a surrogate": ("ZADD", b"redbeat::schedule", "1", SURROGATE),
    "a static entry with a surrogate": ("SADD", b"redbeat::statics", SURROGATE),
}

RULE: Final = {"__type__": "rrule", "freq": "DAILY", "dtstart": 0}

LINE: Final = {
    "definition": {"name": "a", "task": "t", "schedule": {"__type__": "interval", "every": 60}},
    "policy": {"exclude": ["\ud800"]},
    "meta": {"last_run_at": None, "total_run_count": 3},
}

FILES: Final = {
    "options of an entry file that are a rule": (
        "json",
        json.dumps({"managed_by": "x", "entries": {"a": {**TABLE, "options": RULE}}}).encode(),
    ),
    "a crontab line that never runs": ("crontab", b"0 0 31 2 * proj.task"),
    "a time zone of many parts": ("crontab", b"CRON_TZ=" + b"Europe/Paris=" * 700),
    "nested brackets in JSON lines": ("jsonlines", NESTED),
    "nested brackets in a fixture": ("django-celery-beat", NESTED),
    "a calendar whose name is no valid text": (
        "jsonlines",
        json.dumps({"name": "a", **LINE}).encode(),
    ),
    "a fixture whose primary keys are lists": (
        "django-celery-beat",
        b'[{"model": "django_celery_beat.periodictask", "pk": [1], "fields": {}}]',
    ),
    "a fixture whose models are objects": (
        "django-celery-beat",
        b'[{"model": {"a": 1}, "pk": [1], "fields": {"name": "a"}}]',
    ),
    "a fixture whose fields are no object": (
        "django-celery-beat",
        b'[{"model": "django_celery_beat.periodictask", "pk": 1, "fields": [1]}]',
    ),
}

PAGES: Final = {
    "a page size of 5000 digits": page("/", b"per=" + b"9" * 5000),
    "a page size in superscript": page("/", b"per=%C2%B2"),
    "a cursor that is no number": page("/", b"after=nan+x"),
    "a name that is not UTF-8": page("/entry", b"name=nm%ff"),
    **{
        f"{path} of an entry with an unreadable calendar": page(path, b"name=cal")
        for path in ("/entry", "/entry/edit", "/entry/simulate", "/api/entry")
    },
    **{
        f"nested brackets in the body of {method} {path}": (
            *(method, path, b"name=a", NESTED, "application/json", b""),
        )
        for method, path in (("PUT", "/api/entry"), ("POST", "/api/entry/pause"))
    },
}

#: Cases of several commands.
TOGETHER: Final = {
    "an unreadable calendar while the time zone changes": [
        ("HSET", b".redbeat::calendars", b"fr", b"[1"),
        ("HSET", b".redbeat::stats", b"timezone", b"Asia/Tokyo"),
    ],
}

SEEDS: Final = (
    *(Seed("own keys", title, case) for title, case in TOGETHER.items()),
    Seed(
        "damaged keys",
        "a script that failed kept the lock",
        [("DEL", b".redbeat::quarantine"), ("ZADD", b".redbeat::quarantine", "1", b"x")],
    ),
    *(Seed("stored", title, case) for title, case in STORED.items()),
    *(Seed("own keys", title, [command]) for title, command in OWN.items()),
    *(Seed("files", title, case) for title, case in FILES.items()),
    *(Seed("pages", title, case) for title, case in PAGES.items()),
    Seed("messages", "a message that is not UTF-8", b"\xff"),
)
