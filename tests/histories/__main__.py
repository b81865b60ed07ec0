"""Let RedBeat 2.4.2 continue the data that this package left in Redis.

``python -m tests.histories`` records real beats, as ``record.py`` does. It records a beat of this
package in UTC, and a 2.4.2 beat in the zone of New York that is followed by a beat of this package.
The command moves each snapshot of these recordings, and of the recording in ``recordings``, to the
present and writes it into an empty Redis. Then 2.4.2 reads every entry and runs a tick. The command
prints one line for each snapshot with its deviations. The exit status is 1 if there are any. The
command takes about two minutes.

Options: ``--python PATH`` uses an existing environment with 2.4.2. ``--committed`` makes no new
recordings and takes some seconds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import redis

from benchmarks.sides import PEER_VERSION, Side, environment, install_peer, ours
from tests.histories.record import NEW_YORK, OURS, SNAPSHOTS, RecordingSpec
from tests.histories.rules import next_run
from tests.histories.snapshots import Kept, entries_in, load, moved, recordings, take
from tests.servers import RedisServer

JUDGE = Path(__file__).with_name("judge.py")

Json = dict[str, Any]


def new_recordings(peer: Side) -> dict[str, Json]:
    """Return new recordings of this version of the package, by name."""
    specs = {
        "now": RecordingSpec(ours(), kept=SNAPSHOTS),
        "2.4.2, then now": RecordingSpec(peer, NEW_YORK, second=ours()),
    }
    with ThreadPoolExecutor() as pool:
        return dict(zip(specs, pool.map(RecordingSpec.made, specs.values()), strict=True))


def judged(python: str, url: str, zone: str) -> Json:
    """Return how 2.4.2 reads and runs the schedule in a Redis; see ``judge.py``."""
    command = [python, str(JUDGE), url, zone]
    found = subprocess.run(command, env=environment(), check=True, capture_output=True, text=True)
    answer: Json = json.loads(found.stdout)
    return answer


def now() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(timezone.utc)


def faults(python: str, url: str, zone: str, snapshot: Json) -> Iterator[str]:
    """Yield the deviations found when 2.4.2 continues a snapshot."""
    snapshot = moved(snapshot, now().timestamp())
    before, clock = entries_in(snapshot), ZoneInfo(zone)
    with redis.Redis.from_url(url, decode_responses=True) as client:
        client.flushall()
        load(client, snapshot)
        begin = now()
        decision = judged(python, url, zone)
        end = now()
        after = entries_in(take(client))
    if decision["error"]:
        yield f"the tick raised {decision['error']}"
    for name in before.keys() ^ after.keys():
        yield f"{name} came or went"
    for name in sorted(before.keys() & after.keys()):
        entry = before[name]
        found = decision["entries"].get(name, {"error": "not found"})
        sent = [message for sender, *message in decision["sent"] if sender == name]
        wrong = [*misread(entry, found), *missent(entry, after[name], sent)]
        if "error" not in found:
            last = entry.last_run_at
            following = begin if last is None else next_run(entry.schedule, last, clock)
            wrong += [
                f"{fault}, the next run is at {following}"
                for fault in mistimed(entry, found, len(sent), following, (begin, end))
            ]
        for fault in wrong:
            yield f"{name}: {fault}"


def mistimed(
    entry: Kept, found: Json, sent: int, following: datetime | None, span: tuple[datetime, datetime]
) -> Iterator[str]:
    """Yield deviations in when 2.4.2 runs an entry; its tick took place within ``span``."""
    begin, end = span
    due = [entry.enabled and following is not None and following <= at for at in span]
    if (found["due_at"] is None) != (following is None):
        yield f"due_at is {found['due_at']}"
    if not due[0] <= found["is_due"] <= due[1]:
        yield f"is_due() is {found['is_due']}"
    # 2.4.2 compares scores with the current time, cut to whole seconds.
    must = due[0] and 0 <= entry.score <= int(begin.timestamp())
    may = due[1] and 0 <= entry.score <= end.timestamp()
    if not must <= sent <= may:
        yield f"was sent {sent} times"


def misread(entry: Kept, found: Json) -> Iterator[str]:
    """Yield the differences between an entry and 2.4.2's reading of it."""
    if "error" in found:
        yield found["error"]
        return
    expected = {
        "args": entry.definition.get("args"),
        "kwargs": entry.definition.get("kwargs", {}),
        "options": entry.definition.get("options", {}),
        "runs": entry.runs,
        "last_run_at": entry.last_run_at and entry.last_run_at.timestamp(),
    }
    for field, value in expected.items():
        if found[field] != value:
            yield f"{field} is {found[field]!r}, not {value!r}"


def missent(entry: Kept, after: Kept, messages: list[list[Any]]) -> Iterator[str]:
    """Yield deviations in the messages and in the stored run of an entry."""
    arguments = [entry.definition.get("args") or [], entry.definition.get("kwargs", {})]
    for message in messages:
        if message != [entry.definition["task"], *arguments]:
            yield f"was sent as {message}"
    if after.runs != entry.runs + len(messages):
        yield f"ran {entry.runs} times before, {after.runs} times after"
    if after.definition != entry.definition:
        yield f"is now {after.definition}"


def main() -> int:
    """Print the deviations and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.histories", description=__doc__)
    parser.add_argument("--python", help="an interpreter that has 2.4.2")
    parser.add_argument("--committed", action="store_true", help="make no new recordings")
    options = parser.parse_args()
    peer = Side("peer", PEER_VERSION, options.python) if options.python else install_peer()
    every = {OURS: recordings()[OURS], **({} if options.committed else new_recordings(peer))}
    wrong = 0
    with RedisServer() as server:
        for name, recording in every.items():
            for shot, snapshot in recording["snapshots"].items():
                found = list(faults(peer.python, server.url, recording["timezone"], snapshot))
                wrong += len(found)
                lines = [f"{name}, {shot}: {len(entries_in(snapshot))} entries", *found]
                sys.stdout.write("\n    ".join(lines) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
