"""A TCP proxy on the loopback interface that holds back every byte for a while.

A process of its own: ``python delay.py PORT MICROSECONDS`` forwards to a port of this machine,
prints the port it listens on, and ends when its standard input does. Threads that sleep are more
exact than an event loop, whose timers are of whole milliseconds.
"""

from __future__ import annotations

import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ("delayed",)

CHUNK = 1 << 16

Held = queue.SimpleQueue[tuple[float, bytes]]


def take(source: socket.socket, held: Held, seconds: float) -> None:
    """Read until the end, and note from when on each piece may go."""
    data = b"-"
    while data:
        try:
            data = source.recv(CHUNK)
        except OSError:
            data = b""
        held.put((time.monotonic() + seconds, data))


def give(target: socket.socket, held: Held) -> None:
    """Send each piece when its time has come; close at the end."""
    while True:
        at, data = held.get()
        wait = at - time.monotonic()
        if wait > 0:
            time.sleep(wait)
        try:
            if data:
                target.sendall(data)
                continue
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        return


def join(one: socket.socket, other: socket.socket, seconds: float) -> None:
    """Forward both ways."""
    for source, target in ((one, other), (other, one)):
        source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        held: Held = queue.SimpleQueue()
        threading.Thread(target=take, args=(source, held, seconds), daemon=True).start()
        threading.Thread(target=give, args=(target, held), daemon=True).start()


def serve(port: int, seconds: float) -> None:
    """Accept connections for ever."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        print(server.getsockname()[1], flush=True)
        while True:
            client, _ = server.accept()
            join(client, socket.create_connection(("127.0.0.1", port)), seconds)


@contextmanager
def delayed(port: int, round_trip: float) -> Iterator[int]:
    """Run a proxy for the block, which gets its port; ``round_trip`` is the seconds it adds."""
    command = [sys.executable, str(Path(__file__)), str(port), str(round_trip / 2 * 1e6)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:  # type: ignore[call-overload]
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


def main(port: str, microseconds: str) -> None:
    """Forward until the standard input ends."""
    work = threading.Thread(target=serve, args=(int(port), float(microseconds) / 1e6), daemon=True)
    work.start()
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
