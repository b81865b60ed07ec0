"""Wakes up a waiting beat when an entry is saved or the lock is released."""

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

#: Messages on the channel: an entry became the next one due; the lock was released.
DUE, LOCK = b"due", b"lock"

#: Seconds between two checks whether the service was stopped.
SLICE = 0.25

#: Seconds of silence after which the subscription is checked with a ping.
PING_INTERVAL = 30.0

#: Seconds to wait for the server to confirm a subscription.
CONFIRM_SECONDS = 5.0


class WakeUp:
    """Subscribes to the wake-up channel of one schedule, on a connection of its own.

    Messages only shorten the wait: the next tick sees everything that was missed here. So a client
    that cannot subscribe, or a broken connection, causes seconds of delay and loses no run.

    Arguments:
        client: a client that does not retry.
        channel: name of the channel.
        clock: monotonic seconds.
        sleep: waits for a number of seconds, used without a subscription.
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
        """Subscribe if there is no subscription; return True if this call subscribed.

        Messages before that are missed, so the caller ticks once more. One round trip to subscribe.
        """
        if self._pubsub is not None or not self._can_subscribe:
            return False
        try:
            with HeldSignals(), cluster_errors():
                self._pubsub = self._client.pubsub()
                self._pubsub.subscribe(self._channel)
                confirmed = self._pubsub.get_message(timeout=CONFIRM_SECONDS) is not None
        except TypeError as error:
            # redis-py 5.0.0 cannot subscribe through Sentinel.
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
        """Wait for the message ``expected``, for at most ``seconds``; return whether it came.

        Returns False when ``stopping()`` is true. Several messages during the wait count as one.
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
        """End the subscription; the next :meth:`listen` subscribes again.

        Does nothing during :meth:`wait`, where a signal handler may call this method.
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
            logger.debug("beat: Could not close the wake-up connection: %r", error)

    def _receives(self, expected: bytes, seconds: float) -> bool:
        """Wait for a message for at most ``seconds``; return whether it is ``expected``."""
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
            # ValueError: any program may publish bytes that are not UTF-8 on the channel.
            self._lost(error)
            return False
        self._received_at = self._clock()
        data = message.get("data")
        return (data.encode() if isinstance(data, str) else data) == expected

    def _check(self) -> None:
        """Ping a silent connection, and drop it if the last ping got no answer."""
        now = self._clock()
        if now - max(self._received_at, self._pinged_at) < PING_INTERVAL:
            return
        if self._received_at < self._pinged_at:
            self._lost("silent")
            return
        self._pinged_at = now
        self._pubsub.ping()

    def _lost(self, why: object) -> None:
        logger.debug("beat: Lost the wake-up connection, subscribing again later: %r", why)
        self._drop()
