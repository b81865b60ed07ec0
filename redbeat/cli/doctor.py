"""``celery redbeat doctor``: what is wrong with the schedule, and putting it right."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from redbeat.cli.command import EX_UNHEALTHY, command
from redbeat.cli.console import Console
from redbeat.cli.options import option
from redbeat.errors import ConfigurationError
from redbeat.management.doctor import Finding, examine
from redbeat.storage.quarantine import printable
from redbeat.storage.store import store_of

__all__ = ("doctor",)


@command("doctor")
@option("--fix", is_flag=True, help="Put right what can be; without it nothing is changed.")
def doctor(console: Console, fix: bool) -> None:
    """Look for what is wrong with the schedule.

    The exit code is 0 when there was nothing, and 1 when there was, even if it was put right: run
    it again to see.
    """
    found = fixed = 0
    for finding in _findings(console, fix):
        found += 1
        fixed += finding.fixed
        _print(console, finding, fix)
    if not console.as_json:
        what = f"{found} findings, {fixed} put right" if fix else f"{found} findings"
        console.note(what if found else "Nothing is wrong")
    if found:
        console.ctx.exit(EX_UNHEALTHY)


def _findings(console: Console, fix: bool) -> Iterator[Finding]:
    try:
        schedule = console.schedule
        yield from examine(console.app, store_of(console.app), schedule.entry_class, fix)
    except ConfigurationError as error:
        yield Finding("settings", "", str(error), "change it: nothing else was looked at")


def _print(console: Console, finding: Finding, fix: bool) -> None:
    if console.as_json:
        console.emit({**asdict(finding), "key": printable(finding.key)})
        return
    where = f"{console.name(printable(finding.key))} " if finding.key else ""
    if finding.fixed:
        answer = f"done: {finding.remedy}"
    elif finding.fixable and not fix:
        answer = f"--fix would {finding.remedy}"
    else:
        answer = finding.remedy
    console.say(f"{finding.kind}: {where}{finding.problem}; {answer}")
