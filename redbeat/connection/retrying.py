"""A Redis client that tries again: commands, pipelines, scripts, locks and scans."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar

from celery.utils.log import get_logger
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    ClusterDownError,
    ReadOnlyError,
    TimeoutError,  # noqa: A004 - redis-py's is not the built-in one
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.sentinel import MasterNotFoundError
from tenacity import RetryCallState, Retrying
from tenacity.wait import wait_random_exponential

from .pipelines import RetryingPipeline

__all__ = ("RetryingConnection", "is_retriable")

logger = get_logger("celery.beat")

T = TypeVar("T")

#: Waiting may help against these.
RETRIABLE: Final = (
    BusyLoadingError,
    ClusterDownError,
    MasterNotFoundError,
    ReadOnlyError,
    RedisConnectionError,
    TimeoutError,
    TryAgainError,
)
#: Kinds of connection errors that waiting does not help against.
HOPELESS: Final = (AuthenticationError, AuthorizationError)

# Methods that issue commands one by one through the client they belong to.
_COMPOUND: Final = frozenset({"lock", "register_script", "transaction"})


def is_retriable(error: BaseException) -> bool:
    """Tell whether the same command may succeed a little later."""
    return isinstance(error, RETRIABLE) and not isinstance(error, HOPELESS)


class RetryingConnection:
    """A client that repeats what failed for up to ``retry_period`` seconds, or for ever (-1).

    Commands, pipelines, scripts (``register_script``), locks (``lock``), ``transaction`` and
    ``*_iter`` scans are repeated; ``pubsub`` and pipelines that watch keys are not. The last error
    is raised unchanged. A command whose answer was lost is sent again, so it may run twice.
    Everything else is the wrapped client's.
    """

    #: The longest wait between two attempts, seconds.
    RETRY_MAX_WAIT = 2.0
    #: The shortest wait, seconds. The longest begins at twice of that and doubles.
    RETRY_MIN_WAIT = 0.1

    def __init__(
        self,
        retry_period: float,
        wrapped_connection: Any,
        *,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.retry_period = retry_period
        self.wrapped_connection = wrapped_connection
        self._sleep = sleep

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.retry_period} s, {self.wrapped_connection!r}>"

    def __enter__(self) -> RetryingConnection:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.wrapped_connection.close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "wrapped_connection":
            raise AttributeError(name)
        value = getattr(self.wrapped_connection, name)
        if not callable(value):
            return value
        if name in _COMPOUND or name.endswith("_iter"):
            # The method of the class, on us: each command it issues is then tried again.
            return partial(getattr(type(self.wrapped_connection), name), self)
        return partial(self._command, name, value)

    def pipeline(self, *args: Any, **kwargs: Any) -> RetryingPipeline:
        """Return a pipeline whose ``execute()`` is repeated as a whole."""
        return RetryingPipeline(
            self.call, partial(self.wrapped_connection.pipeline, *args, **kwargs)
        )

    def call(self, command: str, function: Callable[[], T]) -> T:
        """Return what ``function`` returns; log attempts that fail under the name ``command``."""
        retrying = Retrying(
            sleep=self._sleep,
            stop=self._stop,
            wait=self._wait,
            retry=_failed_for_now,
            before_sleep=partial(_log_attempt, command),
            reraise=True,
        )
        return retrying(function)

    def _command(self, name: str, method: Callable[..., Any], /, *args: Any, **options: Any) -> Any:
        command = str(args[0]) if name == "execute_command" and args else name
        return self.call(command.upper(), partial(method, *args, **options))

    def _stop(self, state: RetryCallState) -> bool:
        return self.retry_period >= 0 and self._remaining(state) <= 0

    def _wait(self, state: RetryCallState) -> float:
        # Jitter, so that all clients of a server that came back do not ask at once.
        backoff = wait_random_exponential(
            multiplier=2 * self.RETRY_MIN_WAIT, max=self.RETRY_MAX_WAIT, min=self.RETRY_MIN_WAIT
        )(state)
        return backoff if self.retry_period < 0 else max(0.0, min(backoff, self._remaining(state)))

    def _remaining(self, state: RetryCallState) -> float:
        # Time asleep counts by itself too, so that the period ends with any kind of sleep.
        spent = max(state.seconds_since_start or 0.0, state.idle_for)
        return self.retry_period - spent


def _failed_for_now(state: RetryCallState) -> bool:
    error = state.outcome.exception() if state.outcome else None
    return error is not None and is_retriable(error)


def _log_attempt(command: str, state: RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome else None
    wait = state.next_action.sleep if state.next_action else 0.0
    message = "Redis: %s failed at attempt %d, next one in %.2f s: %s: %s"
    logger.warning(message, command, state.attempt_number, wait, type(error).__name__, error)
