"""The check whether Redis may throw parts of the schedule away."""

from __future__ import annotations

from celery.utils.log import get_logger
from redis.exceptions import ResponseError

from redbeat.errors import RedBeatKeyExpiryError

from .store import Store

__all__ = ("check_eviction",)

logger = get_logger("celery.beat")

MESSAGE = (
    "Redis may evict keys of the schedule: maxmemory is %d with policy %s. "
    "Set maxmemory-policy to noeviction or to a volatile-* policy, "
    "or redbeat_key_expiry_check to 'ignore'."
)


def check_eviction(store: Store, mode: str) -> None:
    """Report an eviction policy that may take entries, as ``redbeat_key_expiry_check`` says.

    ``mode`` is ``ignore``, ``warn``, ``error`` or ``raise``; the last raises
    :exc:`RedBeatKeyExpiryError`. One round trip, none for ``ignore``. Asks INFO, which managed
    servers leave enabled where they disable CONFIG; a server that refuses it is warned about.
    """
    if mode == "ignore":
        return
    try:
        limit, policy = store.eviction()
    except ResponseError as error:
        logger.warning("beat: Cannot tell whether Redis may evict keys of the schedule: %s", error)
        return
    if not limit or not policy.startswith("allkeys-"):
        return
    if mode == "raise":
        raise RedBeatKeyExpiryError(MESSAGE % (limit, policy))
    report = logger.warning if mode == "warn" else logger.error
    report(MESSAGE, limit, policy)
