"""A Redis client that tries again: commands, pipelines, scripts, locks and scans."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

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

__all__ = (
    "RetryingConnection",
    "RetryingPipeline",
    "is_retriable",
)

logger = get_logger("celery.beat")


#: Calls a function, again if it fails; the text names it in the log.
Call: TypeAlias = Callable[[str, Callable[[], list[Any]]], list[Any]]


class RetryingPipeline:
    """A pipeline that remembers what was queued, and queues it again for another attempt.

    redis-py forgets the commands of a pipeline when it is executed, even when that fails. With
    watched keys the commands are the wrapped pipeline's and are not repeated: what was read before
    would no longer be true.
    """

    def __init__(self, call: Call, make: Callable[[], Any]) -> None:
        self._call = call
        self._make = make
        self._pipeline = make()
        self._queued: list[Callable[[Any], Any]] = []

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        # Scripts ask ``isinstance(client, Pipeline)`` before they have themselves loaded by it.
        pipeline_type: type = type(self._pipeline)
        return pipeline_type

    def __enter__(self) -> RetryingPipeline:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.reset()

    def __len__(self) -> int:
        return len(self._pipeline)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"<RetryingPipeline: {len(self._queued)} commands>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_pipeline":
            raise AttributeError(name)
        value = getattr(self._pipeline, name)
        return partial(self._queue, name, value) if callable(value) else value

    def reset(self) -> None:
        """Forget what was queued, and stop watching."""
        self._queued = []
        self._pipeline.reset()

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        """Send all commands and return their results; they are sent again if that failed."""
        if getattr(self._pipeline, "watching", False):
            self._queued = []
            return self._results(raise_on_error)
        queued, self._queued = self._queued, []
        scripts = set(getattr(self._pipeline, "scripts", ()))
        attempts = iter((self._results,))

        def attempt() -> list[Any]:
            send = next(attempts, None) or partial(self._send_again, queued, scripts)
            return send(raise_on_error)

        return self._call(f"pipeline of {len(queued)} commands", attempt)

    def _queue(self, name: str, method: Callable[..., Any], /, *args: Any, **options: Any) -> Any:
        result = method(*args, **options)
        if result is not self._pipeline and name != "multi":
            return result
        self._queued.append(lambda pipeline: getattr(pipeline, name)(*args, **options))
        return self if result is self._pipeline else result

    def _results(self, raise_on_error: bool) -> list[Any]:
        results: list[Any] = self._pipeline.execute(raise_on_error)
        return results

    def _send_again(
        self, queued: list[Callable[[Any], Any]], scripts: set[Any], raise_on_error: bool
    ) -> list[Any]:
        self._pipeline.reset()
        self._pipeline = self._make()
        if scripts:
            self._pipeline.scripts = scripts
        for queue in queued:
            queue(self._pipeline)
        return self._results(raise_on_error)


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
