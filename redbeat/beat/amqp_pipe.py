"""Publishes messages to RabbitMQ without waiting for each confirmation."""

from __future__ import annotations

from itertools import takewhile
from typing import Any


class ChannelClosedError(Exception):
    """RabbitMQ closed the channel while messages were unconfirmed."""


class AmqpPipe:
    """Sends messages on a RabbitMQ channel, and collects their confirmations later."""

    nbytes = 0
    shares_errors = True

    def __init__(self, channel: Any) -> None:
        self.channel = channel
        self._tag = 0
        self._unconfirmed: dict[int, int] = {}
        self._results: list[Exception | None] = []
        self._timeout: float | None = None
        channel.events["basic_ack"].add(self._acknowledged)
        channel.events["basic_nack"].add(self._refused)

    @property
    def size(self) -> int:
        """How many messages' results :meth:`results` hasn't returned."""
        return len(self._results)

    def __enter__(self) -> None:
        self.channel.basic_publish = self._publish

    def __exit__(self, *exc_info: object) -> None:
        self.channel.basic_publish = self._publish_and_wait

    def _enable_confirms(self) -> None:
        """Turn publisher confirms on if they are off.

        After py-amqp has reopened a closed channel, they are off again and message numbers start at
        1. One round trip at the first call and after RabbitMQ closed the channel, else none.
        """
        if self.channel._confirm_selected:
            return
        self._fail_unconfirmed(ChannelClosedError("RabbitMQ closed the channel"))
        self._tag = 0
        self.channel.confirm_select()
        self.channel._confirm_selected = True

    def _publish_and_wait(self, *args: Any, **kwargs: Any) -> Any:
        # py-amqp takes the next confirmation for that of the message it publishes, so all earlier
        # ones must be in. RabbitMQ numbers all messages on the channel, so each publish must
        # increase ``_tag``.
        self._drain()
        self._enable_confirms()
        self._tag += 1
        return self.channel.basic_publish_confirm(*args, **kwargs)

    def _publish(self, *args: Any, **kwargs: Any) -> Any:
        confirm, timeout = kwargs.pop("confirm_timeout", None), kwargs.get("timeout")
        self._timeout = confirm or timeout or self._timeout
        self._enable_confirms()
        result = self.channel._basic_publish(*args, **kwargs)
        self._tag += 1
        self._unconfirmed[self._tag] = len(self._results)
        self._results.append(None)
        return result

    def _acknowledged(self, tag: int, multiple: bool) -> None:
        self._settle(tag, multiple, None)

    def _refused(self, tag: int, multiple: bool, *_requeue: Any) -> None:
        self._settle(tag, multiple, RuntimeError("RabbitMQ refused the message (basic.nack)"))

    def _settle(self, tag: int, multiple: bool, error: Exception | None) -> None:
        # ``takewhile`` is enough: unconfirmed tags are in ascending order.
        tags = list(takewhile(lambda one: one <= tag, self._unconfirmed)) if multiple else [tag]
        for one in tags:
            position = self._unconfirmed.pop(one, None)
            if position is not None:
                self._results[position] = error

    def results(self) -> list[Exception | None]:
        """Wait for the confirmations; return each message's error, None for success."""
        self._drain()
        results, self._results, self._timeout = self._results, [], None
        return results

    def close(self) -> None:
        """Nothing to free."""

    def _drain(self) -> None:
        try:
            while self._unconfirmed:
                if self.channel.connection is None or not self.channel._confirm_selected:
                    raise ChannelClosedError("RabbitMQ closed the channel")
                self.channel.connection.drain_events(timeout=self._timeout)
        except Exception as error:
            self._fail_unconfirmed(error)

    def _fail_unconfirmed(self, error: Exception) -> None:
        for position in self._unconfirmed.values():
            self._results[position] = error
        self._unconfirmed.clear()
