"""Delays stop signals while a beat communicates with the broker or Redis."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

#: The functions of ``signal`` without their Python wrappers.
#: A wrapper takes six times as long as its function, because it converts values to enumerations.
get_handler: Callable[[int], Any] = getattr(signal.getsignal, "__wrapped__", signal.getsignal)
set_handler: Callable[[int, Any], Any] = getattr(signal.signal, "__wrapped__", signal.signal)

#: The signals that stop a beat.
#: A handler of a stop signal may raise an exception at any point of the code.
STOP_SIGNALS = (int(signal.SIGTERM), int(signal.SIGINT))


class HeldSignals:
    """A context manager in which the first stop signal only sets :attr:`pending`.

    The handler of the signal runs at the end of the context. If the handler ran at once, it could
    raise an exception during a publish. After an exception during a publish, the beat would not
    know whether the message was sent, and the next beat would send the message again. An exception
    while the beat reads a reply would break the connection.

    A second stop signal runs its own handler at once, and cancels the handler of the first signal.

    Python runs signal handlers only in the main thread. Outside the main thread, this context
    manager does nothing.
    """

    def __init__(self) -> None:
        self._handlers: dict[int, Any] = {}
        self._held: int | None = None
        #: Whether a stop signal was received during this context.
        self.pending = False

    def __enter__(self) -> HeldSignals:
        if threading.current_thread() is threading.main_thread():
            self._handlers = {number: get_handler(number) for number in STOP_SIGNALS}
            for number, handler in self._handlers.items():
                if callable(handler) or handler == signal.SIG_DFL:
                    set_handler(number, self._hold)
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
        # Call only one handler, because some handlers exit the process at a second call.
        self._held = None
        if callable(handler):
            handler(number, frame)
        else:
            os.kill(os.getpid(), number)

    def _restore(self) -> None:
        handlers, self._handlers = self._handlers, {}
        for number, handler in handlers.items():
            if handler is not None:
                set_handler(number, handler)
