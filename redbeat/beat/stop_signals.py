"""Delays stop signals while a beat talks to the broker or to Redis."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any

__all__ = ("HeldSignals",)

#: The signals whose handlers end a beat with an exception, whatever it is doing.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class HeldSignals:
    """A context in which the first stop signal only sets :attr:`pending`.

    An exception in the middle of a publish would hide whether the message was sent, so the next
    beat would send it again. In the middle of a read, it would break the connection. In this
    context the handler runs at the end instead. A second signal runs its handler at once, in place
    of the first.

    Signal handlers belong to the main thread of a process; in any other thread this context does
    nothing.
    """

    def __init__(self) -> None:
        self._handlers: dict[int, Any] = {}
        self._held: int | None = None
        #: Whether a signal is held until the end of the context.
        self.pending = False

    def __enter__(self) -> HeldSignals:
        self._held, self.pending = None, False
        if threading.current_thread() is threading.main_thread():
            self._handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
            for number, handler in self._handlers.items():
                if callable(handler) or handler is signal.SIG_DFL:
                    signal.signal(number, self._hold)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._restore()
        held, self._held, self.pending = self._held, None, False
        if held is not None:
            os.kill(os.getpid(), held)

    def _hold(self, number: int, frame: FrameType | None) -> None:
        if not self.pending:
            self._held, self.pending = number, True
            return
        handler = self._handlers[number]
        self._restore()
        # Do not call the handler again at the end: some handlers end the process on a second call.
        self._held = None
        if callable(handler):
            handler(number, frame)
        else:
            os.kill(os.getpid(), number)

    def _restore(self) -> None:
        handlers, self._handlers = self._handlers, {}
        for number, handler in handlers.items():
            if handler is not None:
                signal.signal(number, handler)
