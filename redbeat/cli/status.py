"""The commands ``celery redbeat status`` and ``celery redbeat doctor``, which name problems.

Their exit codes serve as health probes, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Final

from redbeat import BeatInfo, ConfigurationError, Finding, Shard, Status
from redbeat.management import as_json
from redbeat.management.doctor import examine, lost_on_the_way_back
from redbeat.metrics.problems import ERROR, MAX_LATE, finding
from redbeat.presentation.text import duration
from redbeat.printing import plural

from .command import Console, Exit, Styled, command
from .options import SECONDS, flag, option

#: Seconds by which the clocks of this host and Redis may differ without a warning.
MAX_CLOCK_OFFSET: Final = 1.0


@command("status")
@option(
    "--max-late",
    type=SECONDS,
    default=MAX_LATE,
    example="300",
    help="Maximum lateness of a due entry, in seconds or with units, such as 1h30m.",
)
def status(console: Console, max_late: float) -> None:
    """Show active beats, entry counts and lateness.

    The exit code is 1 if there is a problem, which is more than a warning. Examples of problems are
    that no beat is active, that an entry is late by more than --max-late, or that an entry had no
    success within expect_within.
    """
    current = console.schedule.status(max_late)
    if console.as_json:
        console.emit(as_json.status_json(current))
    else:
        console.fields(_fields(console, current))
        for one in current.problems:
            what = "PROBLEM" if one.severity == ERROR else "WARNING"
            text = f"{what}: {console.local(one.problem)}"
            console.write(Styled(text, fg="red", bold=True))
            console.write(f"         {one.remedy}")
    if abs(current.clock_offset) > MAX_CLOCK_OFFSET:
        offset = duration(abs(current.clock_offset))
        console.warn(f"the clocks of this host and of Redis differ by {offset}")
    if not current.healthy:
        console.ctx.exit(Exit.UNHEALTHY)


def _fields(console: Console, status: Status) -> Iterator[tuple[str, str | list[str]]]:
    def texts(beats: Iterable[BeatInfo]) -> list[str]:
        return [_beat(console, beat, status.now) for beat in beats]

    lockless = [beat for beat in status.beats if beat is not status.leader]
    leading = [status.leader] if status.leader else []
    yield "Leader", texts(leading) or ("nobody" if status.lock_key else "")
    yield "Beats", texts(lockless) or ("" if status.lock_key else "nobody")
    yield "Standbys", texts(status.standbys)
    counts = [f"{count} {state}" for state, count in status.entries.items() if count]
    yield "Entries", f"{', '.join(counts)}; {status.statics} static" if counts else "none"
    yield "Due now", str(status.due_now)
    yield "Most late", "" if status.most_late is None else duration(status.most_late)
    yield "Clock", f"this host is {round(status.clock_offset, 3) + 0.0:+.3f} s ahead of Redis"
    if status.beat_clock_offset:
        yield "Beat's clock", f"{status.beat_clock_offset:+.3f} s ahead of Redis"
    yield "Redis", " ".join((status.redis_url, *status.server.values()))
    yield "Prefix", status.key_prefix
    yield "Shards", [*map(_shard, status.shards)]
    yield "Versions", ", ".join(f"{name} {number}" for name, number in as_json.versions().items())


def _shard(shard: Shard) -> str:
    beat = BeatInfo.read(shard.beat)
    process = "no beat" if not shard.beat else f"{beat.host or beat.token}, pid {beat.pid}"
    return f"{shard.prefix}  {plural(shard.entries, 'entry', 'entries')}  {process}"


def _beat(console: Console, beat: BeatInfo, now: datetime) -> str:
    if beat.host is None:
        return f"{beat.token}, a beat of RedBeat 2"
    begin = beat.leads_since or beat.since
    since = f", since {console.time(begin)} {console.zone}" if begin else ""
    ago = (now - beat.last_seen).total_seconds() if beat.last_seen else 0
    seen = f", seen {duration(round(ago, 1))} ago" if beat.last_seen else ""
    return f"{beat.host}, pid {beat.pid}{since}{seen}"


@command("doctor")
@flag("--fix", "Repair problems where possible. Without --fix, the command changes nothing.")
@flag(
    "--for-redbeat-2",
    "Only list the entries that RedBeat 2 cannot read, or whose policies it ignores.",
)
def doctor(console: Console, fix: bool, for_redbeat_2: bool) -> None:
    """Check the schedule for problems.

    The exit code is 1 if the command finds a problem, even if it repairs all problems. Run the
    command again to check that the problems are gone.
    """
    found_count = fixed_count = 0
    checked = lost_on_the_way_back(console.schedule) if for_redbeat_2 else _findings(console, fix)
    for found in checked:
        found_count += 1
        fixed_count += found.fixed
        _print(console, found, fix)
    if not console.as_json:
        summary = plural(found_count, "finding")
        if fix:
            summary += f", {fixed_count} repaired"
        console.note(summary if found_count else "Nothing is wrong")
    if found_count:
        console.ctx.exit(Exit.UNHEALTHY)


def _findings(console: Console, fix: bool) -> Iterator[Finding]:
    try:
        yield from examine(console.schedule, fix)
    except ConfigurationError as error:
        remedy = "correct the setting and run doctor again; nothing else was checked"
        yield finding("settings", str(error), remedy=remedy)


def _print(console: Console, finding: Finding, fix: bool) -> None:
    if console.as_json:
        console.emit(as_json.finding_json(finding))
        return
    where = f"{finding.key} " if finding.key else ""
    if finding.fixed:
        action = f"repaired (--fix: {finding.remedy})"
    elif finding.fixable and not fix:
        action = f"--fix would {finding.remedy}"
    else:
        action = finding.remedy
    console.write(f"{finding.kind}: {where}{console.local(finding.problem)}; {action}")
