"""A RabbitMQ server for the tests, which can crash, freeze and restart."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from kombu.connection import Connection

from tests.servers import free_port
from tests.waiting import wait_until

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ("QUEUE", "RabbitServer", "new_connection")

# This annotation is needed because kombu has no type annotations.
new_connection: Callable[..., Any] = Connection

#: The queue to which Celery publishes.
QUEUE = "celery"

START_SECONDS = 60.0
STOP_SECONDS = 20.0
HINT = "RabbitMQ was not found. Install it: apt-get install rabbitmq-server"

#: Debian's program on the PATH is a wrapper that changes the user; this is the wrapped program.
DEBIAN = "/usr/lib/rabbitmq/bin/rabbitmq-server"

CONFIGURATION = """\
listeners.tcp.local = 127.0.0.1:{port}
log.console = true
log.console.level = warning
log.file = false
"""


def find(*names: str) -> str:
    """Return the path of the first program that exists; raise RuntimeError if none exists."""
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        raise RuntimeError(HINT)
    return found


class RabbitServer:
    """A RabbitMQ node on free loopback ports, in a temporary directory; a context manager.

    The node has a separate ``epmd`` (Erlang's name server), which ends with the node.
    """

    def __init__(self) -> None:
        self._program = find(DEBIAN, "rabbitmq-server")
        self._temporary = tempfile.TemporaryDirectory(prefix="redbeat-rabbitmq-")
        self.directory = Path(self._temporary.name)
        self.port, self._dist_port, self._epmd_port = free_port(), free_port(), free_port()
        self._epmd: subprocess.Popen[bytes] | None = None
        self._node: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        config = self.directory / "rabbitmq.conf"
        config.write_text(CONFIGURATION.format(port=self.port))
        (self.directory / "enabled_plugins").write_text("[].\n")
        try:
            self._epmd = self._start([find("epmd"), "-port", str(self._epmd_port)])
            self._launch()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    @property
    def url(self) -> str:
        """Return the URL of the default virtual host."""
        return f"amqp://guest:guest@127.0.0.1:{self.port}//"

    def kill(self) -> None:
        """Kill the node as in a crash; its ports and its directory are kept."""
        self._signal(signal.SIGKILL)
        self._running().wait(STOP_SECONDS)

    def restart(self) -> None:
        """Start the node again after :meth:`kill`, and wait until it accepts connections."""
        self._launch()

    def pause(self) -> None:
        """Freeze the node: connections stay open and requests get no reply."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue a frozen node."""
        self._signal(signal.SIGCONT)

    def clear(self) -> None:
        """Delete the queue and all its messages."""
        with new_connection(self.url, connect_timeout=STOP_SECONDS) as connection:
            connection.default_channel.queue_delete(QUEUE)

    def _running(self) -> subprocess.Popen[bytes]:
        if self._node is None:
            raise RuntimeError("the node was not started")
        return self._node

    def _signal(self, number: signal.Signals) -> None:
        self._running().send_signal(number)

    def _launch(self) -> None:
        self._node = self._start([self._program])
        wait_until(self._answers, START_SECONDS, f"RabbitMQ:\n{self._log()}")

    def _answers(self) -> bool:
        if self._running().poll() is not None:
            raise RuntimeError(f"RabbitMQ ended:\n{self._log()}")
        try:
            with new_connection(self.url, connect_timeout=1.0) as connection:
                connection.connect()
        except OSError:
            return False
        return True

    def _start(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        with (self.directory / "log.txt").open("ab") as log:
            return subprocess.Popen(
                command,
                cwd=self.directory,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _environment(self) -> dict[str, str]:
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("RABBITMQ_", "ERL_"))
        }
        return {
            **inherited,
            "HOME": str(self.directory),  # The Erlang cookie is in this directory.
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"redbeat-{self.port}@localhost",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_DIST_PORT": str(self._dist_port),
            "RABBITMQ_MNESIA_BASE": str(self.directory / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self.directory),
            "RABBITMQ_PID_FILE": str(self.directory / "node.pid"),
            "RABBITMQ_CONFIG_FILE": str(self.directory / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": os.devnull,
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.directory / "enabled_plugins"),
            # The script replaces itself with the node process, so signals reach the node.
            "RABBITMQ_ALLOW_INPUT": "1",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                "-noinput +S 2:2 +sbwt none -kernel inet_dist_use_interface {127,0,0,1}"
            ),
        }

    def _log(self) -> str:
        return (self.directory / "log.txt").read_text(errors="replace")[-4000:]

    def _end(self) -> None:
        for process in (self._node, self._epmd):
            if process is not None:
                process.kill()
                process.wait(STOP_SECONDS)
        self._temporary.cleanup()
