"""The command ``celery redbeat doctor``, which finds and repairs problems of the schedule."""

from __future__ import annotations

from collections.abc import Iterator

from redbeat.cli.command import EX_UNHEALTHY, Console, command
from redbeat.cli.options import option
from redbeat.errors import ConfigurationError
from redbeat.management.as_json import finding_json
from redbeat.management.doctor import Finding, examine
from redbeat.printing import plural


@command("doctor")
@option(
    "--fix",
    is_flag=True,
    help="Repair problems where possible. Without --fix, the command changes nothing.",
)
def doctor(console: Console, fix: bool) -> None:
    """Check the schedule for problems.

    The exit code is 1 if the command finds a problem, even if it repairs all problems. Run the
    command again to check that the problems are gone.
    """
    found_count = fixed_count = 0
    for finding in _findings(console, fix):
        found_count += 1
        fixed_count += finding.fixed
        _print(console, finding, fix)
    if not console.as_json:
        summary = plural(found_count, "finding")
        if fix:
            summary += f", {fixed_count} repaired"
        console.note(summary if found_count else "Nothing is wrong")
    if found_count:
        console.ctx.exit(EX_UNHEALTHY)


def _findings(console: Console, fix: bool) -> Iterator[Finding]:
    try:
        yield from examine(console.schedule, fix)
    except ConfigurationError as error:
        yield Finding(
            "settings",
            "",
            str(error),
            "correct the setting and run doctor again; nothing else was checked",
        )


def _print(console: Console, finding: Finding, fix: bool) -> None:
    if console.as_json:
        console.emit(finding_json(finding))
        return
    where = f"{finding.key} " if finding.key else ""
    if finding.fixed:
        action = f"repaired (--fix: {finding.remedy})"
    elif finding.fixable and not fix:
        action = f"--fix would {finding.remedy}"
    else:
        action = finding.remedy
    console.write(f"{finding.kind}: {where}{finding.problem}; {action}")
