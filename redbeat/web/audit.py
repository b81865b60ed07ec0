"""Who did what: the log of the page."""

from __future__ import annotations

from celery.utils.log import get_logger
from flask import g, request

__all__ = ("logger", "record", "who")

logger = get_logger("redbeat.web")


def who() -> str | None:
    """Return who makes this request, None where nobody has to say."""
    user: str | None = g.get("user")
    return user


def record(action: str, name: str) -> None:
    """Log an action that was done with an entry."""
    logger.info(
        "%s: %s %r, from %s", who() or "nobody in particular", action, name, request.remote_addr
    )
