"""Writes what beats keep about entries."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from redbeat.entries.state import Ended, digest_of_meta, result_line


def put_state(client: Any, key: str, **parts: Any) -> None:
    """Change parts of what beats keep; None removes a part."""
    text, meta = client.hmget(key, "beat_state", "meta")
    fields = {"m": ["", "", ""], **json.loads(text or "{}"), "of": digest_of_meta(meta), **parts}
    stored = {name: value for name, value in fields.items() if value is not None}
    client.hset(key, "beat_state", json.dumps(stored))


def put_history(client: Any, key: str, lines: Sequence[str]) -> None:
    """Store lines of runs, the latest first."""
    client.hset(key, "history", "[{}]".format(",\n".join(map(json.dumps, lines))))


def stored_lines(client: Any, key: str) -> list[str]:
    """Return the stored lines of runs, the latest first."""
    text = json.loads(client.hget(key, "history"))
    return list(text)


def put_nominal(client: Any, key: str, at: float) -> None:
    """Store the nominal time of the last run, in UNIX seconds."""
    put_state(client, key, at=at)


def put_triggers(client: Any, key: str, count: int) -> None:
    """Let triggered runs wait."""
    put_state(client, key, waiting=[[f"{number}", 1.0] for number in range(count)])


def is_triggered(client: Any, key: str) -> bool:
    """Return whether a triggered run waits."""
    return "trigger" in (client.hget(key, "inbox") or "")


def put_hold(client: Any, key: str, until: float) -> None:
    """Let a beat hold a run of the entry."""
    put_state(client, key, hold=["scheduled", 1.0, "id", until, "", 0])


def put_failing(client: Any, key: str, attempts: int, at: float, reason: str) -> None:
    """Store that all attempts to send the run that was due at ``at`` have failed."""
    put_state(client, key, failing=[at, attempts, reason, at, at, ""])


def put_results(
    client: Any, key: str, success: float, failures: int, since: float, *ends: tuple[float, Ended]
) -> None:
    """Store what workers reported. Each end has the nominal time of its run; UNIX seconds."""
    put_state(client, key, results=[success, failures, since, []])
    lines = ",\n".join(result_line(end) for _, end in ends)
    client.hset(key, "results", f"[{lines}]")
