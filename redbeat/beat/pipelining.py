"""Messages on the wire together: written one after the other, and waited for together.

What a producer publishes in the context of a pipe is on its way after :meth:`Pipe.leave`, and has
an outcome after :meth:`Pipe.answers`. Nothing above this module knows what kind of broker it is.
"""

from __future__ import annotations

from typing import Any, Protocol

from .amqp_pipe import AmqpPipe
from .redis_pipe import RedisPipe

__all__ = ("Pipe", "pipe_of")


class Pipe(Protocol):
    """Messages that one channel has collected, and those of them that are on their way."""

    channel: Any

    #: Whether an error on the channel may be about a message that was published before.
    shares_errors: bool

    @property
    def size(self) -> int:
        """How many operations of the broker were collected since :meth:`leave`."""

    @property
    def nbytes(self) -> int:
        """How many bytes they take, as far as this process has to keep them."""

    def __enter__(self) -> None:
        """From now on publishing on the channel does not wait for the broker."""

    def __exit__(self, *exc_info: object) -> None:
        """It waits again."""

    def leave(self) -> None:
        """Send what was collected, and wait for nothing; nothing else may be on its way.

        Raises nothing of its own: :meth:`answers` tells what went wrong.
        """

    def answers(self) -> list[Exception | None]:
        """Wait for the broker; return for each operation that left why it failed, else None.

        Raises nothing of its own; afterwards nothing is on its way.
        """

    def close(self) -> None:
        """Let go of what belongs to the pipe; the channel stays as it is."""


def pipe_of(channel: Any) -> Pipe | None:
    """Return a pipe for a channel of kombu, None for a transport that has no use for one.

    No network traffic. Redis in all its forms has; so has RabbitMQ where it confirms what is
    published. Where it does not, nothing is waited for anyhow.
    """
    if hasattr(channel, "conn_or_acquire"):
        return RedisPipe(channel)
    confirms = getattr(channel, "basic_publish_confirm", None)
    # By equality: a bound method is made anew at each look.
    if confirms is not None and channel.basic_publish == confirms and not channel._confirm_selected:
        return AmqpPipe(channel)
    return None
