"""``python -m tests.simulation``: runs, replays or shrinks scenarios."""

from __future__ import annotations

import os

from tests.simulation import clocks

clocks.install()  # Install the clocks before all other imports.

from tests.simulation.command import main  # noqa: E402

if os.environ.get("REDBEAT_EDITION") == "3":
    from tests.edition.switch import install

    install()

if __name__ == "__main__":
    main()
