"""Waiting until replicas have what was recorded."""

from __future__ import annotations

from typing import Any

from celery.utils.log import get_logger
from redis.exceptions import RedisError

__all__ = ("Replicas",)

logger = get_logger("celery.beat")

#: Seconds to wait for them at most.
WAIT_SECONDS = 1.0


class Replicas:
    """Has a connection wait until ``wanted`` replicas confirmed what was written on it.

    Too few of them hold up nothing but for a second: that is logged, and so is their return.
    """

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self._enough = True

    def wait(self, connection: Any) -> None:
        """Wait for them. One round trip. A broken connection is left for the next command."""
        # Half of what the socket allows, so that the answer still comes in time.
        seconds = min(WAIT_SECONDS, (connection.socket_timeout or WAIT_SECONDS * 2) / 2)
        try:
            connection.send_command("WAIT", self.wanted, max(1, int(seconds * 1000)))
            reached = int(connection.read_response())
        except (RedisError, OSError) as error:
            connection.disconnect()
            logger.warning("beat: Cannot tell whether replicas recorded the runs: %s", error)
            return
        self._report(reached, seconds)

    def _report(self, reached: int, seconds: float) -> None:
        before, self._enough = self._enough, reached >= self.wanted
        if before and not self._enough:
            message = "beat: %d replicas of %d recorded the last runs within %.2f s, going on"
            logger.warning(message, reached, self.wanted, seconds)
        elif self._enough and not before:
            logger.warning("beat: %d replicas record the runs again", reached)
