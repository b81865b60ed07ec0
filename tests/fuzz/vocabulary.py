"""The words in hostile data: words that the decoder knows, and limits of numbers."""

from __future__ import annotations

from redbeat.entries.policy import FIELDS as POLICY_FIELDS

__all__ = (
    "BYTES",
    "CALENDAR",
    "DEFINITION",
    "FIELDS",
    "HASH_FIELDS",
    "HISTORY",
    "ICAL",
    "LAST_RUN",
    "NOTE",
    "NUMBERS",
    "RUNTIME",
    "SCORES",
    "STATS",
    "TABLE",
    "TAGGED",
    "TEXTS",
)

#: Valid objects of every kind, as JSON.
TAGGED = (
    '{"__type__": "interval", "every": 60, "relative": false}',
    '{"__type__": "crontab", "minute": "*/5", "hour": "1,2", "day_of_week": "mon-fri"}',
    '{"__type__": "crontab", "minute": "0", "day_of_month": "31", "month_of_year": "2"}',
    '{"__type__": "rrule", "freq": "DAILY", "dtstart": 0, "byhour": [1, 2], "count": 5}',
    '{"__type__": "rrule", "freq": "YEARLY", "dtstart": 0, "byeaster": 1, "byweekno": [53]}',
    '{"__type__": "rrule", "freq": "SECONDLY", "dtstart": 0, "bymonth": 2, "bymonthday": 30}',
    (
        '{"__type__": "rrule", "freq": 3, "dtstart": 0, "dtstart_zone": "Europe/Paris", '
        '"byweekday": [{"__type__": "weekday", "wkday": 1, "n": 2}], "until": 4000000000}'
    ),
    '{"__type__": "datetime", "year": 2026, "month": 1, "day": 1, "timezone": "UTC", "fold": 1}',
    '{"__type__": "weekday", "wkday": 6, "n": -1}',
    '{"__type__": "verbatim", "items": [["a", 1]]}',
)

FIELDS = (
    *POLICY_FIELDS,
    *("__type__", "name", "task", "args", "kwargs", "options", "schedule", "enabled", "delivery"),
    *("every", "relative", "minute", "hour", "day_of_week", "day_of_month", "month_of_year"),
    *("freq", "dtstart", "dtstart_tz", "dtstart_zone", "interval", "wkst", "count", "until"),
    *("until_tz", "until_zone", "bysetpos", "bymonth", "bymonthday", "byyearday", "byeaster"),
    *("byweekno", "byweekday", "byhour", "byminute", "bysecond", "wkday", "n", "items"),
    *("year", "month", "day", "second", "microsecond", "timezone", "fold", "last_run_at"),
    *("total_run_count", "app", "headers", "link", "retry_policy", "countdown", "eta", "expires"),
    *("__class__", "__reduce__", "__init__", "py/object", "self", "cls", "nowfun"),
)

TEXTS = (
    *("", " ", "*", "*/0", "*/5", "1-0", "0-99999999", "[1,2]", "1,,2", "-1", "MON", "mon-mon"),
    *("DAILY", "NEVER", "interval", "crontab", "rrule", "datetime", "weekday", "verbatim"),
    *("UTC", "Europe/Paris", "../../etc/passwd", "/etc/passwd", "A" * 5000, "a\x00b", "\ud800"),
    *("os:system", "builtins.eval", "__import__('os').system('true')", "!!python/object", "%s%n"),
    *(
        ":lock",
        ":schedule",
        ":statics",
        ":quarantine",
        ":beats",
        ":stats",
        ":wakeup",
        "redbeat:x",
        "{x}",
    ),
    *("\u202e", "\n2026-01-01 INFO forged", "{", "}", "NaN", "-Infinity", "1e999", "null"),
)

NUMBERS = (
    *(0, 1, -1, 2, 7, 24, 31, 53, 60, 366, 367, 86_400, 2**31, 2**53, 2**63, 2**64, 10**30),
    *(-(2**63), 10**400, 0.5, 1e-9, 1e-320, 1e18, 1e308, -1e308, 253402300799, -62135596800),
)

#: Bytes that are not text, and text that is dangerous to print.
BYTES = (
    *(b"\xff", b"\x80", b"\xc3", b"\xed\xa0\x80", b"\x00", b"\n", b"\r\n", b"\x1b[31m", b"\x9b31m"),
    *(
        b"\xe2\x80\xa8",
        b"\xe2\x80\xae",
        b"\xef\xbb\xbf",
        b"%s",
        b"%",
        b"{",
        b'"',
        b"\\",
        b"/",
        b"*",
    ),
    *(b"9" * 400, b"1e400", b"-1", b"nan", b"inf", b"1 2", b" ", b"&", b"=", b"%ff", b"%00", b";"),
    *(b"<script>", b"A" * 5000, b"0" * 5000),
)

#: A valid definition, into which a schedule is put.
DEFINITION = {
    "name": "",
    "task": "proj.task",
    "args": [1, "a"],
    "kwargs": {"day": "monday"},
    "options": {"queue": "q", "priority": 3, "headers": {"a": 1}, "expires": 60},
    "enabled": True,
}

LAST_RUN = {
    "__type__": "datetime",
    "year": 2026,
    "month": 1,
    "day": 2,
    "hour": 3,
    "minute": 4,
    "second": 5,
    "microsecond": 6,
    "timezone": "UTC",
}

TASK_ID = "9990889f-cecf-5b01-8e31-0e063db84179"
BACKFILL = [
    *("r1", 1795400000.0, 1795460000.5, 10.0, 1, 9),
    *([[1795430000.0, 1795440000.0], [1795450000.0, 1795460000.0]], 1.5),
]

#: The last runs, and the field ``runtime`` of exported entries.
HISTORY = [
    f"1795462249.994258 +0.016094 triggered {TASK_ID}",
    "1795462259.5 +1.5 sent 9990889f-cecf-5b01-8e31-0e063db84170",
]
RUNTIME = {"scheduled_at": 1795462249.9, "last_run_at": 1795462250.1}

#: Valid contents of the other stored fields of an entry, by name.
HASH_FIELDS = {
    "meta": {"last_run_at": LAST_RUN, "total_run_count": 3},
    "policy": {
        "timezone": "Europe/Paris",
        "misfire_grace_time": 60,
        "max_runs": 5,
        "overlap": "skip",
        "start_time": LAST_RUN,
        "end_time": LAST_RUN,
        "jitter": 5,
        "on_finish": "disable",
        "delivery": "at_most_once",
        "spread": 600,
        "exclude": ["de"],
        "on_excluded": "skip",
        "expect_within": 3600,
        "pause": {"note": "why", "since": "2026-11-23T19:30:49+00:00", "by": "me"},
    },
    "beat_state": {
        "m": ["0123456789ab", "0123456789ab", "ba9876543210"],
        "of": "",
        "id": "dYQ3TU6Q",
        "at": 1795462249.9,
        "running": [TASK_ID, 1795462280.0],
        "due": 1795462250.0,
        "hold": ["triggered", 1795462249.9, TASK_ID, 1795462280.0, "r1", 2, 1795462000.0],
        "failing": [1795462249.9, 3, "OSError: last", 1795462249, 1795462250.1, "ValueError: x"],
        "waiting": [["9990889f", 1795462249.9], BACKFILL],
        "ids": ["r1", "r2"],
        "pause": [1795462250.0, "why", "me"],
        "quarantine": [1795462250.0, "definition: cannot be read as JSON"],
        "results": [1795462260.5, 3, 1.5, [TASK_ID]],
    },
    "inbox": [
        ["trigger", "r3", 1795462249.9],
        ["backfill", BACKFILL, 1],
        ["end", TASK_ID, "failed", 1.25, 2, "ValueError: x", 1795462260.5],
    ],
    "history": HISTORY,
    "results": [
        [TASK_ID, "failed", 1.25, 2, "ValueError: x", 1795462260.5],
        ["another", "lost", None, 0, "", 1795462261],
    ],
    "waits": TASK_ID,
    "unknown": {"a": 1},
}

#: A valid calendar.
CALENDAR = {
    "days": ["2026-12-25", ["2026-12-27", "2027-01-03"]],
    "rules": ["DTSTART;VALUE=DATE:20260101\nRRULE:FREQ=WEEKLY;BYDAY=SA,SU"],
    "zone": "Europe/Paris",
}

#: An entry as the API and the files of ``apply`` give it.
TABLE = {
    "task": "proj.task",
    "cron": "*/5 2 * * mon-fri",
    "args": [1],
    "kwargs": {"a": 1},
    "options": {"priority": 3},
    "queue": "q",
    "enabled": True,
    "timezone": "Europe/Paris",
    "start_time": "2026-01-01T00:00:00Z",
    "max_runs": 5,
    "jitter": "1m",
    "exclude": ["de"],
}

#: The events of an iCalendar file.
ICAL = (
    b"BEGIN:VCALENDAR\r\nVERSION:2.0\r\nPRODID:-//t//EN\r\nBEGIN:VEVENT\r\nUID:1\r\n"
    b"DTSTAMP:20260101T000000Z\r\nDTSTART;VALUE=DATE:20261224\r\nDTEND;VALUE=DATE:20261227\r\n"
    b"RRULE:FREQ=YEARLY;COUNT=3\r\nEXDATE;VALUE=DATE:20271224\r\nSUMMARY:a\r\nEND:VEVENT\r\n"
    b"BEGIN:VEVENT\r\nUID:2\r\nDTSTAMP:20260101T000000Z\r\n"
    b"DTSTART;TZID=Europe/Paris:20260501T090000\r\nDURATION:PT1H\r\nEND:VEVENT\r\nEND:VCALENDAR\r\n"
)

#: A valid note of a quarantined entry.
NOTE = {"reason": "definition: cannot be read as JSON", "since": 1795462250.0, "digest": "a" * 40}

#: Scores of the schedule and of the list of beats, as other programs may write them.
SCORES = (
    *("0", "1", "-1", "-2", "0.5", "-0.5", "inf", "-inf", "4e11", "1e308", "-1e300", "1e-300"),
    *("1795462249.994258", "99999999999", "253402300800", "-62135596801", "1e19"),
)

#: Fields of the stats.
STATS = (
    *("timezone", "batch", "last_tick", "dispatched", "dispatched a", "quarantined", "leader"),
    *(
        "reports_since",
        "last_report",
        "tick:0.05",
        "tick:sum",
        "tick:x",
        "round_trips",
        "problem",
        "statics",
        "late:1",
        "late:sum",
    ),
)
