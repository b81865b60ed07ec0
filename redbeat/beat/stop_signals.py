"""Signals that stop a beat, held back while the beat talks to the broker or to Redis."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any

__all__ = ("HeldSignals",)

#: The signals whose handlers end a beat by an exception, in the middle of whatever it does.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class HeldSignals:
    """A context in which the first stop signal only sets :attr:`pending`.

    A handler that raises in the middle of a publish leaves nobody knowing whether the message is
    out, so that it is sent again; in the middle of a read it breaks the connection, and may even be
    hidden by the error that this raises. In this context it runs at the end. A second signal is
    delivered at once, in place of the first. Handlers are per process and belong to its main
    thread: in any other thread this does nothing, and nothing is needed there.
    """

    def __init__(self) -> None:
        self._handlers: dict[int, Any] = {}
        self._held: int | None = None
        #: Whether a signal waits for the end of the context.
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
        # Not once more at the end: some handlers end the process at once when called again.
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
