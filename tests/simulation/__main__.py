"""``python -m tests.simulation``: runs, replays or shrinks scenarios."""

from __future__ import annotations

from tests.simulation import clocks

clocks.install()  # Install the clocks before all other imports.

from tests.simulation.command import main  # noqa: E402

if __name__ == "__main__":
    main()
