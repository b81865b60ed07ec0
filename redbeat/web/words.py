"""Schedules in words."""

from __future__ import annotations

from typing import Any

from redbeat.presentation.describing import schedule_text

__all__ = ("in_words",)


def in_words(schedule: Any, timezone: str | None = None) -> str:
    """Return a schedule in words, with the zone where one is given."""
    text = schedule_text(schedule)
    return f"{text}, {timezone}" if timezone else text
