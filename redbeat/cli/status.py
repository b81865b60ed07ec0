"""The command ``celery redbeat status``: an overview, which also serves as a health probe."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from redbeat.cli.command import EX_UNHEALTHY, Console, Styled, command
from redbeat.cli.options import SECONDS, option
from redbeat.management.as_json import problems_of, status_json, versions
from redbeat.management.status import Shard
from redbeat.presentation.text import duration
from redbeat.printing import plural
from redbeat.schedule import Status
from redbeat.storage.beats import BeatInfo

#: Maximum difference between the clocks of this host and Redis without a warning, in seconds.
MAX_CLOCK_OFFSET: Final = 1.0


@command("status")
@option(
    "--max-late",
    type=SECONDS,
    default=60,
    example="300",
    help="Maximum lateness of a due entry, in seconds or with units, such as 1h30m.",
)
def status(console: Console, max_late: float) -> None:
    """Show active beats, entry counts and lateness.

    The exit code is 1 if there is a problem. Examples of problems are that no beat is active, that
    an entry is late by more than --max-late, or that an entry had no success within expect_within.
    """
    current = console.schedule.status()
    problems = list(problems_of(current, max_late))
    if console.as_json:
        console.emit(status_json(current, problems))
    else:
        console.fields(_fields(console, current))
        for problem in problems:
            console.write(Styled(f"PROBLEM: {problem}", fg="red", bold=True))
    if abs(current.clock_offset) > MAX_CLOCK_OFFSET:
        offset = duration(abs(current.clock_offset))
        console.warn(f"the clocks of this host and of Redis differ by {offset}")
    if problems:
        console.ctx.exit(EX_UNHEALTHY)


def _fields(console: Console, status: Status) -> Iterator[tuple[str, str | list[str]]]:
    lockless = [beat for beat in status.beats if beat is not status.leader]
    leading = [status.leader] if status.leader else []
    for name, beats, always_print in (
        ("Leader", leading, bool(status.lock_key)),
        ("Beats", lockless, not status.lock_key),
        ("Standbys", status.standbys, False),
    ):
        if beats or always_print:
            yield name, [_beat(console, beat, status.now) for beat in beats] or "nobody"
    counts = [f"{count} {state}" for state, count in status.entries.items() if count]
    yield "Entries", f"{', '.join(counts)}; {status.statics} static" if counts else "none"
    yield "Due now", str(status.due_now)
    yield "Most late", "" if status.most_late is None else duration(status.most_late)
    yield "Clock", f"this host is {round(status.clock_offset, 3) + 0.0:+.3f} s ahead of Redis"
    yield "Redis", " ".join((status.redis_url, *status.server.values()))
    yield "Prefix", status.key_prefix
    if status.shards:
        yield "Shards", [*map(_shard, status.shards)]
    yield "Versions", ", ".join(f"{name} {number}" for name, number in versions().items())


def _shard(shard: Shard) -> str:
    beat = BeatInfo.read(shard.beat)
    process = "no beat" if not shard.beat else f"{beat.host or beat.token}, pid {beat.pid}"
    return f"{shard.prefix}  {plural(shard.entries, 'entry', 'entries')}  {process}"


def _beat(console: Console, beat: BeatInfo, now: datetime) -> str:
    if beat.host is None:
        return f"{beat.token}, a beat of RedBeat 2"
    since = f", since {console.time(beat.since)} {console.zone}" if beat.since else ""
    ago = (now - beat.last_seen).total_seconds() if beat.last_seen else 0
    seen = f", seen {duration(round(ago, 1))} ago" if beat.last_seen else ""
    return f"{beat.host}, pid {beat.pid}{since}{seen}"
