"""Delays stop signals while a beat talks to the broker or Redis, and limits the time of a stop."""

from __future__ import annotations

import atexit
import os
import signal
import threading
from types import FrameType
from typing import Any, Final

#: The signals that stop a beat. A handler may raise an exception at any point of the code.
STOP_SIGNALS = (int(signal.SIGTERM), int(signal.SIGINT))


#: The modules of the handlers of event loops, which only note a signal. Python tells a loop of each
#: signal, whatever its handler is: a held one, which is sent again, would be handled twice.
LOOPS: Final = ("asyncio.unix_events", "uvloop.loop")

#: A beat service ends this many seconds after a stop signal, whatever it waits for. Docker kills a
#: process after ten.
LONGEST_STOP: Final = 6.5

#: Seconds after a second signal, and seconds that the exit itself may take.
LONGEST_SECOND: Final = 0.5
LONGEST_EXIT: Final = 1.3


def in_main_thread() -> bool:
    """Python sets and runs signal handlers only there."""
    return threading.current_thread() is threading.main_thread()


class Stop:
    """Ends this process, if it is a beat service, some seconds after a stop signal.

    That is as if it were killed, except that exit handlers run, and the log says what was not
    recorded. Without :meth:`enable`, or without ``SIGALRM``, it does nothing.
    """

    def __init__(self) -> None:
        self._enabled = self._begun = False
        #: Whether time is up: nothing more is asked of Redis or the broker.
        self.over = False

    def enable(self) -> None:
        """Let stop signals end this process, unless the program uses ``SIGALRM`` itself."""
        if in_main_thread() and hasattr(signal, "SIGALRM"):
            self._enabled = signal.getsignal(signal.SIGALRM) == signal.SIG_DFL

    def begin(self) -> None:
        """Begin to stop. In another thread, which a program has given the beat, nothing ends it."""
        if self._enabled and not self._begun and in_main_thread():
            self._begun = True
            signal.signal(signal.SIGALRM, self._end)
            atexit.register(self.end)  # Python removes the handler at its very end
            signal.setitimer(signal.ITIMER_REAL, LONGEST_STOP, LONGEST_EXIT)

    def signalled(self) -> None:
        """Begin to stop; a second call ends the process soon."""
        if self._begun:
            signal.setitimer(signal.ITIMER_REAL, LONGEST_SECOND, LONGEST_EXIT)
        self.begin()

    def end(self) -> None:
        """Don't end the process any more, because it has stopped."""
        if self._begun:
            signal.setitimer(signal.ITIMER_REAL, 0)
        self._enabled = self._begun = False

    def _end(self, _number: int, _frame: FrameType | None) -> None:
        if self.over:
            os._exit(0)
        self.over = True
        raise SystemExit(0)


STOP: Final = Stop()


class HeldSignals:
    """A context manager in which the first stop signal only sets :attr:`pending`.

    The signal's handler runs at the end of the context. Run at once, it could raise an exception
    during a publish: the beat wouldn't know whether the message was sent, and the next beat would
    send it again. An exception while the beat reads a reply would break the connection.

    A second stop signal runs its own handler at once and cancels that of the first. After the first
    one a beat service ends within seconds, see :class:`Stop`.

    Python runs signal handlers only in the main thread; in others this does nothing.
    """

    def __init__(self) -> None:
        self._handlers: dict[int, Any] = {}
        self._held: int | None = None
        #: Whether a stop signal came during this context.
        self.pending = False

    def __enter__(self) -> HeldSignals:
        if in_main_thread():
            found = {number: signal.getsignal(number) for number in STOP_SIGNALS}
            self._handlers = {number: found[number] for number in found if _acts(found[number])}
            for number in self._handlers:
                signal.signal(number, self._hold)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._restore()
        held, self._held, self.pending = self._held, None, False
        if held is not None:
            os.kill(os.getpid(), held)

    def _hold(self, number: int, _frame: FrameType | None) -> None:
        STOP.signalled()
        if not self.pending:
            self._held, self.pending = number, True
            return
        self._restore()
        # Only one handler runs: some exit the process at a second call.
        self._held = None
        os.kill(os.getpid(), number)

    def _restore(self) -> None:
        handlers, self._handlers = self._handlers, {}
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _acts(handler: Any) -> bool:
    """Whether a handler does something at once."""
    if not callable(handler):
        return bool(handler == signal.SIG_DFL)
    return getattr(handler, "__module__", None) not in LOOPS
