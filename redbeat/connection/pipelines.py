"""A Redis pipeline that can be executed again after it failed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

__all__ = ("RetryingPipeline",)

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
