"""How a beat waits between two ticks: until the time has come, or until something happened."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from celery.utils.log import get_logger
from redis.exceptions import RedisError

from redbeat.connection.cluster import cluster_errors

from .stop_signals import HeldSignals

__all__ = ("DUE", "LOCK", "WakeUp")

logger = get_logger("celery.beat")

#: What is said on the channel: an entry became the next one due; the lock was released.
DUE, LOCK = b"due", b"lock"

#: Seconds after which a wait looks whether the service was told to stop.
SLICE = 0.25

#: Seconds after which a silent subscription is asked whether it is still alive.
PING_INTERVAL = 30.0

#: Seconds to wait for the server to confirm a subscription.
CONFIRM_SECONDS = 5.0


class WakeUp:
    """Listens on the wake-up channel of one schedule, on a connection of its own.

    It makes waiting shorter and nothing else: what is missed here is seen at the next tick. So a
    client that cannot subscribe, or a connection that broke, costs seconds and no run.

    Arguments:
        client: a client that does not retry.
        channel: name of the channel.
        clock: monotonic seconds.
        sleep: waits for a number of seconds, where there is no subscription.
    """

    def __init__(
        self,
        client: Any,
        channel: str,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._client = client
        self._channel = channel
        self._clock = clock
        self._sleep = sleep
        self._pubsub: Any = None
        self._can_subscribe = hasattr(client, "pubsub")
        self._received_at = self._pinged_at = 0.0
        self._waiting = False

    def listen(self) -> bool:
        """Subscribe unless that is done; True when it was done just now. One round trip then.

        What was published before it is not heard: tick once more.
        """
        if self._pubsub is not None or not self._can_subscribe:
            return False
        try:
            with HeldSignals(), cluster_errors():
                self._pubsub = self._client.pubsub()
                self._pubsub.subscribe(self._channel)
                confirmed = self._pubsub.get_message(timeout=CONFIRM_SECONDS) is not None
        except TypeError as error:
            # redis-py 5.0.0 cannot subscribe by way of Sentinel.
            self._can_subscribe = False
            self._lost(error)
            return False
        except (RedisError, OSError) as error:
            self._lost(error)
            return False
        self._received_at = self._pinged_at = self._clock()
        if not confirmed:
            self._lost("no answer")
        return confirmed

    def wait(self, seconds: float, expected: bytes, stopping: Callable[[], bool]) -> bool:
        """Wait until ``expected`` is said, ``seconds`` are over or ``stopping()`` is true.

        Returns whether it was said. What was said several times meanwhile counts once.
        """
        until = self._clock() + seconds
        self._waiting = True
        try:
            while not stopping():
                left = until - self._clock()
                if left <= 0:
                    return False
                if self._receives(expected, min(left, SLICE)):
                    while self._receives(expected, 0.0):
                        pass
                    return True
            return False
        finally:
            self._waiting = False

    def close(self) -> None:
        """End the subscription; the next :meth:`listen` begins another.

        Nothing happens within :meth:`wait`, where a signal handler may call it.
        """
        if not self._waiting:
            self._drop()

    def _drop(self) -> None:
        pubsub, self._pubsub = self._pubsub, None
        if pubsub is None:
            return
        try:
            pubsub.close()
        except (RedisError, OSError) as error:
            logger.debug("beat: Closing the wake-up connection: %r", error)

    def _receives(self, expected: bytes, seconds: float) -> bool:
        """Listen for so long at most; whether ``expected`` was said."""
        if self._pubsub is None:
            if seconds:
                self._sleep(seconds)
            return False
        try:
            with HeldSignals(), cluster_errors():
                message = self._pubsub.get_message(timeout=seconds)
            if message is None:
                self._check()
                return False
        except (RedisError, OSError, ValueError) as error:
            # ValueError for bytes that are not UTF-8: anybody may publish on the channel.
            self._lost(error)
            return False
        self._received_at = self._clock()
        data = message.get("data")
        return (data.encode() if isinstance(data, str) else data) == expected

    def _check(self) -> None:
        """Ask a silent connection for a sign of life, and give up one that gave none."""
        now = self._clock()
        if now - max(self._received_at, self._pinged_at) < PING_INTERVAL:
            return
        if self._received_at < self._pinged_at:
            self._lost("silent")
            return
        self._pinged_at = now
        self._pubsub.ping()

    def _lost(self, why: object) -> None:
        logger.debug("beat: The wake-up connection is lost, listening again later: %r", why)
        self._drop()
