"""Wakes up a waiting beat when an entry was saved or the lock was released."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from redis.exceptions import RedisError

from redbeat.codec.stored import text_of
from redbeat.connection.topology import server_errors
from redbeat.errors import described
from redbeat.printing import get_logger

from .stop_signals import HeldSignals

logger = get_logger("celery.beat")

#: The messages: an entry was saved that is due before all others, and the lock was released.
DUE, LOCK = b"due", b"lock"

#: Seconds between two checks whether the beat service was stopped.
SLICE = 0.25

#: Seconds of silence after which a beat subscribes again. It can't tell a quiet channel from a
#: connection that a firewall has dropped.
LONGEST_SILENCE = 60.0

#: How many further messages one :meth:`WakeUp.wait` reads and ignores.
MAX_DISCARDED = 1000

CONFIRM_SECONDS = 5.0


class WakeUp:
    """Subscribes to the wake-up channel of one schedule, on a connection of its own.

    A message only ends a beat's wait early; without it, the next tick still finds what is due. So
    if the client can't subscribe, or the connection breaks, runs are some seconds late and none is
    lost.

    ``client`` must not retry, and ``clock`` returns monotonic seconds. ``sleep`` is for waits
    without a subscription.
    """

    def __init__(
        self,
        client: Any,
        channel: str,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._client = client
        #: The channels to subscribe to. In a cluster, the first one determines the server.
        self.channels = [channel]
        #: Only set if there are several channels: whether a message on this channel ends the wait.
        #: Then :meth:`wait` accepts both ``DUE`` and ``LOCK``, whatever is ``expected``.
        self.wanted: Callable[[str], bool] | None = None
        self._clock = clock
        self._sleep = sleep
        self._pubsub: Any = None
        self._received_at = 0.0

    def listen(self) -> bool:
        """Subscribe if there is no subscription; return whether a new one was made.

        Earlier messages are missed, so tick again after a new one. One round trip to subscribe.
        """
        if self._pubsub is not None:
            return False
        try:
            with HeldSignals(), server_errors():
                self._pubsub = self._client.pubsub()
                self._pubsub.subscribe(*self.channels)
                if self._pubsub.get_message(timeout=CONFIRM_SECONDS) is None:
                    raise TimeoutError("no answer")
        except (RedisError, OSError, ValueError, TypeError, AttributeError) as error:
            # redis-py 5.0.0 can't subscribe through Sentinel, and some clients not at all.
            self._lost(error)
            return False
        self._received_at = self._clock()
        return True

    def wait(self, seconds: float, expected: bytes, stopping: Callable[[], bool]) -> bool:
        """Wait up to ``seconds`` for the message ``expected``; return whether it came.

        False once ``stopping()`` is true. Several messages during the wait count as one.
        """
        until = self._clock() + seconds
        while not stopping():
            left = until - self._clock()
            if left <= 0:
                return False
            if self._receives(expected, min(left, SLICE)):
                # Without a limit, a program that never stops publishing would block the beat.
                for _ in range(MAX_DISCARDED):
                    if not self._receives(expected, 0.0):
                        break
                return True
        return False

    def close(self) -> None:
        """End the subscription; the next :meth:`listen` subscribes again."""
        pubsub, self._pubsub = self._pubsub, None
        if pubsub is None:
            return
        try:
            pubsub.close()
        except (RedisError, OSError) as error:
            logger.debug("beat: Could not close the wake-up connection: %s", described(error))

    def _receives(self, expected: bytes, seconds: float) -> bool:
        """Wait up to ``seconds``; return whether ``expected`` came.

        Also true after a long silence: the next tick subscribes again, and misses nothing.
        """
        if self._pubsub is None:
            if seconds:
                self._sleep(seconds)
            return False
        try:
            with HeldSignals(), server_errors():
                message = self._pubsub.get_message(timeout=seconds)
        except (RedisError, OSError, ValueError) as error:
            # ValueError: another program has published invalid UTF-8 on the channel.
            self._lost(error)
            return False
        if message is None:
            is_silent = self._clock() - self._received_at >= LONGEST_SILENCE
            if is_silent:
                self._lost("silent")
            return is_silent
        self._received_at = self._clock()
        data = message.get("data")
        data = data.encode() if isinstance(data, str) else data
        if self.wanted is not None and data in (DUE, LOCK):
            return self.wanted(text_of(message.get("channel")))
        return bool(data == expected)

    def _lost(self, why: object) -> None:
        logger.debug("beat: Lost the wake-up connection, subscribing again later: %r", why)
        self.close()
