"""The words in hostile data: words that the decoder knows, and limits of numbers."""

from __future__ import annotations

__all__ = ("FIELDS", "NUMBERS", "TAGGED", "TEXTS")

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
