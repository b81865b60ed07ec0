"""The form that changes the rule of an entry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from redbeat.calendar.zones import UTC, zone_named
from redbeat.errors import InvalidEntryError
from redbeat.presentation.rule_text import has_own_zone, parse_rule, rule_of

__all__ = ("RuleForm", "apply_rule", "preview_of")

#: Runs that are shown before they are saved.
PREVIEWED = 10


@dataclass(slots=True)
class RuleForm:
    """What was typed, and what is wrong with it.

    Attributes:
        kind, rule, timezone: the fields, as typed.
        seen: the digest of what was stored when the form was shown.
        errors: what is wrong, by field; "" for the form as a whole.
    """

    kind: str
    rule: str
    timezone: str
    seen: str
    errors: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, given: Mapping[str, str]) -> RuleForm:
        """Return the form that was sent."""
        names = ("kind", "rule", "timezone", "seen")
        kind, rule, timezone, seen = (given.get(name, "").strip() for name in names)
        return cls(kind, rule.replace("\r\n", "\n"), timezone, seen)

    def blame(self, error: InvalidEntryError) -> None:
        """Note an error at the field that it is about."""
        head = error.field.partition(".")[0]
        where = {"schedule": "rule"}.get(head, head)
        if where in ("kind", "rule", "timezone"):
            self.errors[where] = error.problem
        else:
            self.errors[""] = str(error)


def apply_rule(entry: Any, form: RuleForm) -> None:
    """Change the schedule and the zone of an entry; raises :exc:`InvalidEntryError`."""
    app_zone = entry.app.timezone
    try:
        zone = zone_named(form.timezone) if form.timezone else app_zone
    except ValueError as error:
        raise InvalidEntryError("timezone", str(error)) from error
    # What was not touched stays as it is: its text may say less than the schedule.
    if rule_of(entry.schedule) != (form.kind, form.rule):
        entry.schedule = parse_rule(form.kind, form.rule, zone, entry.app)
    entry.__dict__.pop("timezone", None)
    if form.timezone and not has_own_zone(entry.schedule):
        entry.timezone = form.timezone
    entry.texts()


def preview_of(entry: Any, form: RuleForm) -> list[datetime]:
    """Return the next runs as the form has them; what is wrong is noted in the form."""
    if form.errors:
        return []
    changed = entry._copy()
    try:
        apply_rule(changed, form)
        changed._arm(entry._seen_texts, changed.texts(), datetime.now(UTC))
        runs: list[datetime] = changed.upcoming(PREVIEWED)
        return runs
    except InvalidEntryError as error:
        form.blame(error)
        return []
