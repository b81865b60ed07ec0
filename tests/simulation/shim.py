"""A real Redis server that reads the simulation's clock through a preloaded library.

``TIME`` and expiry follow the virtual clock, and commands are sent unchanged. The library is
compiled from ``shim.c`` when the server starts; this needs a C compiler.
"""

from __future__ import annotations

import mmap
import shutil
import subprocess
from pathlib import Path
from typing import Final

from tests.servers import RedisServer
from tests.simulation.engine import Engine

SOURCE: Final = Path(__file__).with_name("shim.c")


class ShimmedServer(RedisServer):
    """A server with the preloaded clock, which reads the file ``clock`` in the same directory."""

    @property
    def clock(self) -> Path:
        """Return the path of the clock file.

        The file contains a signed 64-bit number of microseconds; 0 means the real time.
        """
        return self.directory / "clock"

    def _command(self) -> list[str]:
        library = self.directory / "shim.so"
        if not library.exists():
            if shutil.which("cc") is None:
                raise RuntimeError(f"no C compiler for {SOURCE.name}: install gcc and libc6-dev")
            command = ["cc", "-shared", "-fPIC", "-O2", "-o", str(library), str(SOURCE), "-ldl"]
            subprocess.run(command, check=True)
            self.clock.write_bytes(bytes(8))
        variables = [f"LD_PRELOAD={library}", f"SIMULATED_CLOCK={self.clock}"]
        return ["env", *variables, *super()._command()]


class ShimmedEngine(Engine):
    """An engine with a server that runs in virtual time."""

    far = 0

    _shared: memoryview | None = None

    def _new_server(self, *arguments: str) -> RedisServer:
        self._shimmed = ShimmedServer(*arguments)
        return self._shimmed

    def __enter__(self) -> ShimmedEngine:
        super().__enter__()
        with self._shimmed.clock.open("r+b") as file:
            self._shared = memoryview(mmap.mmap(file.fileno(), 8)).cast("q")
        return self

    @property
    def now(self) -> int:
        return 0 if self._shared is None else self._shared[0]

    @now.setter
    def now(self, now: int) -> None:
        if self._shared is not None:
            self._shared[0] = now

    def translated(self, words: list[bytes]) -> list[bytes]:
        """Return the command unchanged."""
        return words
