"""Real Redis servers for the tests, with the ways in which servers fail."""

from __future__ import annotations

import signal

from examples.embedded import EmbeddedRedis, free_port

__all__ = ("RedisServer", "free_port")


class RedisServer(EmbeddedRedis):
    """A Redis server that a test may kill, stop for a while, and start again."""

    is_paused = False

    def kill(self) -> None:
        """End the server at once, as a crash does; its port and directory stay."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Start again on the same port; what was saved in the directory is loaded.

        A server that still runs is shut down first, without a save of its own.
        """
        self._end(signal.SIGTERM)
        if not self._launch():
            raise RuntimeError(f"the Redis server did not start again:\n{self._log()}")

    def pause(self) -> None:
        """Freeze the server: connections stay open, nothing is answered."""
        self.is_paused = True
        self._running().send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a server that was frozen by `pause` go on."""
        self.is_paused = False
        self._running().send_signal(signal.SIGCONT)
