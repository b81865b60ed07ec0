"""A Redis client that retries commands, scripts, locks, scans, and commands sent together."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from redis import exceptions
from redis.client import NEVER_DECODE
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_delay, stop_never
from tenacity.wait import wait_random_exponential

from redbeat.printing import get_logger

from .topology import server_errors

logger = get_logger("celery.beat")


T = TypeVar("T")

#: Errors whose cause may be temporary. That a server is loading its data, and that no Sentinel
#: knows a master, are connection errors, too.
RETRIABLE: Final = (
    exceptions.ClusterDownError,
    exceptions.ReadOnlyError,
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.TryAgainError,
)
#: Subclasses of these errors after which a retry can't succeed.
PERMANENT: Final = (exceptions.AuthenticationError, exceptions.AuthorizationError)

# Methods that send several commands; each command is retried on its own.
_COMPOUND: Final = frozenset({"lock", "register_script"})


def is_retriable(error: BaseException) -> bool:
    return isinstance(error, RETRIABLE) and not isinstance(error, PERMANENT)


class RetryingConnection:
    """A client that retries failed commands for ``retry_period`` seconds, or forever if it is -1.

    Commands, scripts (``register_script``), locks (``lock``), ``transaction`` and ``*_iter`` scans
    are retried, ``pubsub`` and pipelines are not; use :meth:`call` for a pipeline. The last
    attempt's error is raised unchanged. A command whose reply was lost is retried too, so it may
    run twice. All other attributes are those of the wrapped client.
    """

    #: The longest wait between two attempts, in seconds.
    RETRY_MAX_WAIT = 2.0
    #: The shortest wait between two attempts, in seconds. The upper limit of a wait starts at twice
    #: this, and doubles with each attempt.
    RETRY_MIN_WAIT = 0.1

    sleep: Callable[[float], None] = staticmethod(time.sleep)

    def __init__(self, retry_period: float, wrapped_connection: Any) -> None:
        self.retry_period = retry_period
        self.wrapped_connection = wrapped_connection

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "wrapped_connection":
            raise AttributeError(name)
        value = getattr(self.wrapped_connection, name)
        if not callable(value):
            return value
        if name in _COMPOUND or name.endswith("_iter"):
            # Bound to the retrying client, so that each command of the method is retried.
            return partial(getattr(type(self.wrapped_connection), name), self)
        return partial(self._command, name, value)

    def call(self, command: str, function: Callable[[], T]) -> T:
        """Call ``function`` with retries; each logs a warning with ``command`` and the error."""
        retrying = Retrying(
            sleep=self.sleep,
            stop=stop_never if self.retry_period < 0 else stop_after_delay(self.retry_period),
            # Random waits spread the load when many clients reconnect to a restarted server.
            wait=wait_random_exponential(
                multiplier=2 * self.RETRY_MIN_WAIT, max=self.RETRY_MAX_WAIT, min=self.RETRY_MIN_WAIT
            ),
            retry=retry_if_exception(is_retriable),
            before_sleep=partial(_log_attempt, command),
            reraise=True,
        )
        return retrying(function)

    def _command(self, name: str, method: Callable[..., Any], /, *args: Any, **options: Any) -> Any:
        command = str(args[0]) if name == "execute_command" and args else name
        return self.call(command.upper(), partial(method, *args, **options))


def _log_attempt(command: str, state: RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome else None
    wait = state.next_action.sleep if state.next_action else 0.0
    message = "Redis: %s failed at attempt %d, next attempt in %.2f s: %s: %s"
    logger.warning(message, command, state.attempt_number, wait, type(error).__name__, error)


def replies_to(client: Any, commands: Iterable[Sequence[Any]]) -> list[Any]:
    """Return the replies to commands, as bytes, or the error in their place. One round trip.

    If ``client`` retries, it retries all the commands together.
    """
    commands = list(commands)

    def execute() -> list[Any]:
        pipe = client.pipeline(transaction=False)
        for command in commands:
            pipe.execute_command(*command, **{NEVER_DECODE: True})
        with server_errors():
            replies: list[Any] = pipe.execute(raise_on_error=False)
        return replies

    if isinstance(client, RetryingConnection):
        return client.call(f"pipeline of {len(commands)} commands", execute)
    return execute()
