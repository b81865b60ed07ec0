"""A TCP proxy on the loopback interface that delays all data, to simulate network latency.

``python delay.py PORT MICROSECONDS`` starts a proxy for the local port PORT. The proxy delays data
by MICROSECONDS in each direction. The proxy prints the port on which it listens, and exits when its
standard input is closed. The proxy uses threads, because the timers of an event loop have a
resolution of only one millisecond.
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

#: A queue of received data; each item has the monotonic time at which to send the data.
DelayQueue = queue.SimpleQueue[tuple[float, bytes]]


def receive(source: socket.socket, delay_queue: DelayQueue, seconds: float) -> None:
    """Read data until the end of the stream; queue each piece with the time at which to send it."""
    data = b"-"
    while data:
        try:
            data = source.recv(CHUNK)
        except OSError:
            data = b""
        delay_queue.put((time.monotonic() + seconds, data))


def send(target: socket.socket, delay_queue: DelayQueue) -> None:
    """Send queued data after the delay; close the connection at the end of the stream."""
    while True:
        send_at, data = delay_queue.get()
        wait = send_at - time.monotonic()
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
    """Forward data between two connections, in both directions."""
    for source, target in ((one, other), (other, one)):
        source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        delay_queue: DelayQueue = queue.SimpleQueue()
        threading.Thread(target=receive, args=(source, delay_queue, seconds), daemon=True).start()
        threading.Thread(target=send, args=(target, delay_queue), daemon=True).start()


def serve(port: int, seconds: float) -> None:
    """Accept and forward connections until the process ends."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        print(server.getsockname()[1], flush=True)
        while True:
            client, _ = server.accept()
            join(client, socket.create_connection(("127.0.0.1", port)), seconds)


@contextmanager
def delayed(port: int, round_trip: float) -> Iterator[int]:
    """Run a proxy during the ``with`` block; yield the port of the proxy.

    The proxy adds ``round_trip`` seconds to each round trip.
    """
    command = [sys.executable, str(Path(__file__)), str(port), str(round_trip / 2 * 1e6)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:  # type: ignore[call-overload]
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


def main(port: str, microseconds: str) -> None:
    """Run the proxy until the standard input is closed."""
    work = threading.Thread(target=serve, args=(int(port), float(microseconds) / 1e6), daemon=True)
    work.start()
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
