"""Tests of delayed signals, with real signals to this process or to another process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest

from redbeat.beat import stop_signals
from redbeat.beat.stop_signals import STOP_SIGNALS, HeldSignals
from tests.deployments import PREFIX

#: The directory of the package.
ROOT = Path(stop_signals.__file__).parents[2]
BOTH = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])


class Handler:
    """A signal handler that records the signals it receives."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        self.calls.append(number)


def send(number: int) -> None:
    """Send a signal to this process; its Python handler runs before this function returns."""
    os.kill(os.getpid(), number)


@pytest.fixture
def handler() -> Iterator[Handler]:
    """Install a handler of both signals for the duration of a test, and return it."""
    handler = Handler()
    before = {number: signal.signal(number, handler) for number in STOP_SIGNALS}
    yield handler
    for number, old in before.items():
        signal.signal(number, old)


class TestHeld:
    @BOTH
    def test_the_first_signal_is_delivered_at_the_end(self, handler: Handler, number: int) -> None:
        with HeldSignals() as held:
            pending = [held.pending]
            send(number)
            pending.append(held.pending)
            assert handler.calls == []
        assert handler.calls == [number]
        assert [*pending, held.pending] == [False, True, False]

    def test_the_second_signal_is_delivered_at_once(self, handler: Handler) -> None:
        with HeldSignals() as held:
            send(signal.SIGTERM)
            assert handler.calls == []
            send(signal.SIGINT)
            assert handler.calls == [signal.SIGINT]
            assert held.pending
        assert handler.calls == [signal.SIGINT]

    def test_a_handler_that_raises_does_so_after_the_work(self, handler: Handler) -> None:
        work: list[str] = []
        signal.signal(signal.SIGINT, signal.default_int_handler)

        def interrupted() -> None:
            with HeldSignals():
                send(signal.SIGINT)
                work.append("done")

        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert work == ["done"]
        assert handler.calls == []


class TestHandlers:
    def test_handlers_are_restored(self, handler: Handler) -> None:
        with HeldSignals():
            assert [signal.getsignal(number) for number in STOP_SIGNALS] != [handler] * 2
        assert [signal.getsignal(number) for number in STOP_SIGNALS] == [handler] * 2
        send(signal.SIGTERM)
        assert handler.calls == [signal.SIGTERM]

    def test_handlers_are_restored_after_an_error(self, handler: Handler) -> None:
        def failing() -> None:
            with HeldSignals():
                send(signal.SIGTERM)
                raise LookupError

        with pytest.raises(LookupError):
            failing()
        assert handler.calls == [signal.SIGTERM]
        assert [signal.getsignal(number) for number in STOP_SIGNALS] == [handler] * 2

    def test_the_context_can_be_used_again(self, handler: Handler) -> None:
        held = HeldSignals()
        for count in (1, 2):
            with held:
                assert not held.pending
                send(signal.SIGTERM)
                assert len(handler.calls) == count - 1
            assert len(handler.calls) == count

    @pytest.mark.usefixtures("handler")
    def test_an_ignored_signal_stays_ignored(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        with HeldSignals() as held:
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
            send(signal.SIGTERM)
            assert not held.pending
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN

    def test_another_thread_changes_nothing(self, handler: Handler) -> None:
        entered, leave = threading.Event(), threading.Event()
        pending: list[bool] = []

        def work() -> None:
            with HeldSignals() as held:
                entered.set()
                leave.wait(30)
                pending.append(held.pending)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            assert entered.wait(30)
            assert [signal.getsignal(number) for number in STOP_SIGNALS] == [handler] * 2
            send(signal.SIGTERM)
            assert handler.calls == [signal.SIGTERM]
        finally:
            leave.set()
            thread.join(30)
        assert pending == [False]
        assert handler.calls == [signal.SIGTERM]


def run_program(program: str) -> subprocess.CompletedProcess[str]:
    """Run a Python program that imports the package, and wait until it ends."""
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


class TestDefaultAction:
    """A signal kills a process without a handler, but only after the protected work ends."""

    @pytest.mark.parametrize(("count", "printed"), [(1, "started finished"), (2, "started")])
    def test_the_signal_ends_the_process(self, count: int, printed: str) -> None:
        program = f"""
import os, signal
from redbeat.beat.stop_signals import HeldSignals
signal.signal(signal.SIGTERM, signal.SIG_DFL)
with HeldSignals():
    print("started", flush=True)
    for _ in range({count}):
        os.kill(os.getpid(), signal.SIGTERM)
    print("finished", flush=True)
print("survived", flush=True)
"""
        ended = run_program(program)
        assert ended.returncode == -signal.SIGTERM, ended.stderr
        assert ended.stdout.split() == printed.split()


def test_an_event_loop_handles_a_signal_once() -> None:
    program = """
import asyncio, os, signal
from redbeat.beat.stop_signals import HeldSignals
async def main():
    loop, calls, later = asyncio.get_running_loop(), [], asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, calls.append, "called")
    loop.add_signal_handler(signal.SIGUSR1, later.set)
    with HeldSignals():
        os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGUSR1)
    await later.wait()
    print(*calls)
asyncio.run(main())
"""
    ended = run_program(program)
    assert (ended.returncode, ended.stdout) == (0, "called\n"), ended.stderr


class TestStop:
    """The stop of a beat service ends in time, although something never answers."""

    PROGRAM = """
import os, signal, socket, sys
from redbeat.beat import stop_signals
from redbeat.beat.stop_signals import STOP, HeldSignals
stop_signals.LONGEST_STOP, stop_signals.LONGEST_SECOND = {longest}
silent, other = socket.socketpair()
signal.signal(signal.SIGTERM, lambda *_: None)
{before}
with HeldSignals():
    for _ in range({signals}):
        os.kill(os.getpid(), signal.SIGTERM)
    try:
        silent.settimeout(20)
        silent.recv(1)
    finally:
        print("over" if STOP.over else "answered", flush=True)
"""

    def run(self, before: str, signals: int, longest: tuple[float, float]) -> tuple[int, str]:
        program = self.PROGRAM.format(before=before, signals=signals, longest=longest)
        ended = run_program(program)
        return ended.returncode, ended.stdout.strip()

    def test_it_ends_some_seconds_after_the_signal(self) -> None:
        assert self.run("STOP.enable()", 1, (0.2, 60)) == (0, "over")

    def test_a_second_signal_ends_it_soon(self) -> None:
        assert self.run("STOP.enable()", 2, (60, 0.2)) == (0, "over")

    def test_only_a_beat_service_ends_so(self) -> None:
        program = "STOP.begin(); silent.close()"
        code, printed = self.run(program, 1, (0.2, 60))
        assert (code, printed) == (1, "answered")

    def test_an_alarm_of_the_program_stays_its_own(self) -> None:
        alarm = "signal.signal(signal.SIGALRM, lambda *_: print('mine'))"
        before = f"{alarm}; STOP.enable(); STOP.begin(); signal.alarm(1); silent.close()"
        code, printed = self.run(before, 1, (0.2, 60))
        assert (code, printed) == (1, "answered")

    def test_what_has_stopped_in_time_goes_on(self) -> None:
        before = "STOP.enable(); STOP.begin(); STOP.end(); print('stopped'); sys.exit(3)"
        assert self.run(before, 0, (0.2, 60)) == (3, "stopped")

    def test_a_service_stops_in_another_thread_than_the_one_that_made_it(
        self, redis_url: str
    ) -> None:
        program = f"""
import threading
from celery import Celery
from celery.beat import Service
from redbeat.schedulers import get_redis
app = Celery(broker={redis_url!r})
app.conf.update(redbeat_redis_url={redis_url!r}, redbeat_key_prefix={PREFIX!r})
service = Service(app, scheduler_cls="redbeat.RedBeatScheduler")
lock = service.scheduler.lock_key
service.stop()
thread = threading.Thread(target=service.start)
thread.start()
thread.join(30)
print(get_redis(app).exists(lock))
"""
        ended = run_program(program)
        assert (ended.returncode, ended.stdout) == (0, "0\n"), ended.stderr
