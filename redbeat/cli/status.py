"""``celery redbeat status``: for people, and as a probe."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from importlib.metadata import version
from platform import python_version
from typing import Any, Final

from redbeat.beat.lock import BeatInfo
from redbeat.cli.command import EX_UNHEALTHY, command
from redbeat.cli.console import Console
from redbeat.cli.options import SECONDS, option
from redbeat.presentation.describe import iso
from redbeat.presentation.text import duration
from redbeat.schedule import Status

__all__ = ("status",)

#: Seconds that the clocks of this host and of Redis may differ before it is said.
CLOCK_OFFSET: Final = 1.0


@command("status")
@option(
    "--max-late",
    type=SECONDS,
    default=60,
    show_default=True,
    example="300",
    help="How late the most late entry may be.",
)
def status(console: Console, max_late: float) -> None:
    """Show who runs the schedule, and how it does.

    The exit code is 1 when no beat is at work, or when an entry is too late.
    """
    found = console.schedule.status()
    problems = list(_problems(found, max_late))
    if console.as_json:
        console.emit(_json(found, problems))
    else:
        console.fields(_fields(console, found))
        for problem in problems:
            console.say(console.style(f"PROBLEM: {problem}", fg="red", bold=True))
    if abs(found.clock_offset) > CLOCK_OFFSET:
        offset = duration(abs(found.clock_offset))
        console.warn(f"the clock of this host and that of Redis are {offset} apart")
    if problems:
        console.ctx.exit(EX_UNHEALTHY)


def _problems(found: Status, max_late: float) -> Iterator[str]:
    if not found.beats:
        yield "no beat leads" if found.lock_key else "no beat is at work"
    if found.problem:
        yield found.problem
    if found.most_late is not None and found.most_late > max_late:
        yield f"an entry is {duration(found.most_late)} late"


def _beat_json(beat: BeatInfo) -> dict[str, Any]:
    times = {"since": iso(beat.since), "last_seen": iso(beat.last_seen)}
    return {"token": beat.token, "host": beat.host, "pid": beat.pid, **times}


def _json(found: Status, problems: list[str]) -> dict[str, Any]:
    return {
        "healthy": not problems,
        "problems": problems,
        "leader": None if found.leader is None else _beat_json(found.leader),
        "beats": [_beat_json(beat) for beat in found.beats],
        "standbys": [_beat_json(beat) for beat in found.standbys],
        "lock_key": found.lock_key,
        "total": sum(found.entries.values()),
        "entries": found.entries,
        "statics": found.statics,
        "due_now": found.due_now,
        "most_late": found.most_late,
        "clock_offset": found.clock_offset,
        "key_prefix": found.key_prefix,
        "redis": {"url": found.redis_url, **found.server},
        "versions": _versions(),
    }


def _versions() -> dict[str, str]:
    packages = {"redbeat": "celery-redbeat", "celery": "celery", "redis": "redis"}
    found = {name: version(package) for name, package in packages.items()}
    return {**found, "python": python_version()}


def _fields(console: Console, found: Status) -> Iterator[tuple[str, str]]:
    sharing = [beat for beat in found.beats if beat is not found.leader]
    leading = [found.leader] if found.leader else []
    for name, beats, always in (
        ("Leader", leading, bool(found.lock_key)),
        ("Beats", sharing, not found.lock_key),
        ("Standbys", found.standbys, False),
    ):
        if beats or always:
            yield name, "\n".join(_beat(console, beat, found.now) for beat in beats) or "nobody"
    counts = [f"{count} {state}" for state, count in found.entries.items() if count]
    yield "Entries", f"{', '.join(counts)}; {found.statics} static" if counts else "none"
    yield "Due now", str(found.due_now)
    yield "Most late", "" if found.most_late is None else duration(found.most_late)
    yield "Clock", f"{round(found.clock_offset, 3) + 0.0:+.3f} s, this host to Redis"
    yield "Redis", " ".join((found.redis_url, *found.server.values()))
    yield "Prefix", console.name(found.key_prefix)
    yield "Versions", ", ".join(f"{name} {number}" for name, number in _versions().items())


def _beat(console: Console, beat: BeatInfo, now: datetime) -> str:
    if beat.host is None:
        return console.name(beat.token)
    since = f", since {console.time(beat.since)} {console.zone}" if beat.since else ""
    ago = (now - beat.last_seen).total_seconds() if beat.last_seen else 0
    seen = f", seen {duration(round(ago, 1))} ago" if beat.last_seen else ""
    return f"{console.name(beat.host)}, pid {beat.pid}{since}{seen}"
