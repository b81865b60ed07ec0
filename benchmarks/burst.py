"""Measures the memory of a beat while many entries are due at once. Works only on Linux.

``python -m benchmarks.burst URL --entries 100000`` prints one JSON object, metric -> bytes.
The beat decides about and records runs, but publishes no messages.
"""

from __future__ import annotations

import argparse
import gc
import json
import re
import sys
from datetime import datetime, timezone
from pathlib import Path

from .metering import Metrics
from .prepared import EVERY, OVERDUE, beat, emptied, make_app, seed

#: A Lua script that makes all entries due immediately.
MAKE_DUE = """
for index = 0, tonumber(ARGV[1]) - 1 do
  redis.call('ZADD', 'redbeat::schedule', ARGV[2], 'redbeat:entry-' .. string.format('%d', index))
end
"""


def memory(name: str) -> int:
    """Return the current (``VmRSS``) or the peak (``VmHWM``) memory of this process in bytes."""
    match = re.search(rf"^{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert match is not None, name
    return int(match[1]) * 1024


def reset_peak() -> None:
    """Reset the peak memory of this process (``VmHWM``) to its current memory."""
    Path("/proc/self/clear_refs").write_text("5")


def watch(url: str, count: int) -> Metrics:
    """Return the memory of a beat before, during and after a burst of due entries, in bytes.

    ``idle`` is the memory before the burst, ``above`` is the largest increase during the burst, and
    ``stays`` is the increase that remains after the burst.
    """
    client = emptied(url)
    now = datetime.now(timezone.utc).timestamp()
    ran = datetime.fromtimestamp(now - OVERDUE, timezone.utc)
    seed(client, count, "interval", ran, now + EVERY)
    with beat(make_app(url)) as scheduler:
        for _ in range(10):
            scheduler.tick()
        gc.collect()
        reset_peak()
        idle = memory("VmRSS")
        client.eval(MAKE_DUE, 0, count, now - 1)
        while scheduler.sent < count:
            scheduler.tick()
        return {"idle": idle, "above": memory("VmHWM") - idle, "stays": memory("VmRSS") - idle}


def main(argv: list[str]) -> None:
    """Run the measurement and print its metrics."""
    parser = argparse.ArgumentParser(prog="burst", description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--entries", type=int, default=100_000)
    options = parser.parse_args(argv)
    print(json.dumps(watch(options.url, options.entries)))


if __name__ == "__main__":
    main(sys.argv[1:])
