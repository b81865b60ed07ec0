"""What memory a beat takes when very many entries are due at once. Linux only.

``python -m benchmarks.burst URL --entries 100000``: prints one JSON object, metric -> bytes.
Nothing travels to a broker; everything else is as in a beat.
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

#: Makes entries due whose last run was an hour ago.
PUT_UP = """
for index = 0, tonumber(ARGV[1]) - 1 do
  redis.call('ZADD', 'redbeat::schedule', ARGV[2], 'redbeat:entry-' .. string.format('%d', index))
end
"""


def memory(name: str) -> int:
    """Return a figure about the memory of this process: ``VmRSS``, or ``VmHWM`` for its peak."""
    found = re.search(rf"^{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None, name
    return int(found[1]) * 1024


def forget_peak() -> None:
    """Let the peak be what is used now."""
    Path("/proc/self/clear_refs").write_text("5")


def watch(url: str, count: int) -> Metrics:
    """Return the memory of an idle beat, and its peak during the burst above that."""
    client = emptied(url)
    now = datetime.now(timezone.utc).timestamp()
    ran = datetime.fromtimestamp(now - OVERDUE, timezone.utc)
    seed(client, count, "interval", ran, now + EVERY)
    with beat(make_app(url)) as scheduler:
        for _ in range(10):
            scheduler.tick()
        gc.collect()
        forget_peak()
        idle = memory("VmRSS")
        client.eval(PUT_UP, 0, count, now - 1)
        while scheduler.sent < count:
            scheduler.tick()
        return {"idle": idle, "above": memory("VmHWM") - idle, "stays": memory("VmRSS") - idle}


def main(argv: list[str]) -> None:
    """Run it, and print the metrics."""
    parser = argparse.ArgumentParser(prog="burst", description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--entries", type=int, default=100_000)
    options = parser.parse_args(argv)
    print(json.dumps(watch(options.url, options.entries)))


if __name__ == "__main__":
    main(sys.argv[1:])
