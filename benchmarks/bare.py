"""``python bare.py COUNT`` sends COUNT tasks in a loop, without a scheduler."""

from __future__ import annotations

import sys

from beatapp import app  # type: ignore[import-not-found,unused-ignore]


def main(count: int) -> None:
    """Send ``count`` messages one after the other on one connection."""
    with app.connection_for_write() as connection, app.amqp.Producer(connection) as producer:
        for index in range(count):
            app.send_task("unknown", [index], {"three": 3}, producer=producer)


if __name__ == "__main__":
    main(int(sys.argv[1]))
