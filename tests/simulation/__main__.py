"""``python -m tests.simulation``: run scenarios, replay one, shrink one."""

from __future__ import annotations

from tests.simulation import clocks

clocks.install()  # before anything else is imported

from tests.simulation.command import main  # noqa: E402

if __name__ == "__main__":
    main()
