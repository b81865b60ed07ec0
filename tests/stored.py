"""Writes what beats keep about entries, as the edition under test stores it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from tests.edition.state import Ended, digest_of_meta, result_line

IS_THIRD = os.environ.get("REDBEAT_EDITION") == "3"


def put_state(client: Any, key: str, **parts: Any) -> None:
    """Change parts of what beats of the third edition keep; None removes a part."""
    text, meta = client.hmget(key, "beat_state", "meta")
    fields = {"m": ["", "", ""], **json.loads(text or "{}"), "of": digest_of_meta(meta), **parts}
    stored = {name: value for name, value in fields.items() if value is not None}
    client.hset(key, "beat_state", json.dumps(stored))


def put_history(client: Any, key: str, lines: Sequence[str]) -> None:
    """Store lines of runs, the latest first."""
    if IS_THIRD:
        client.hset(key, "history", "[{}]".format(",\n".join(map(json.dumps, lines))))
    else:
        client.hset(key, "history", json.dumps("".join(f"{line}\n" for line in lines)))


def stored_lines(client: Any, key: str) -> list[str]:
    """Return the stored lines of runs, the latest first."""
    text = json.loads(client.hget(key, "history"))
    return list(text) if IS_THIRD else text.splitlines()


def put_nominal(client: Any, key: str, at: float, ran: float = 2.5) -> None:
    """Store the nominal time of the last run, and when it took place; UNIX seconds."""
    if IS_THIRD:
        put_state(client, key, at=at)
    else:
        client.hset(key, "runtime", json.dumps({"scheduled_at": at, "last_run_at": ran}))


def put_triggers(client: Any, key: str, count: int) -> None:
    """Let triggered runs wait."""
    if IS_THIRD:
        put_state(client, key, waiting=[[f"{number}", 1.0] for number in range(count)])
    else:
        client.hset(key, "trigger", " ".join(f"{number}:1" for number in range(count)))


def is_triggered(client: Any, key: str) -> bool:
    """Return whether a triggered run waits."""
    return "trigger" in (client.hget(key, "inbox") or "") or bool(client.hget(key, "trigger"))


def put_claim(client: Any, key: str, until: float) -> None:
    """Let a beat hold a run of the entry."""
    if IS_THIRD:
        put_state(client, key, hold=["scheduled", 1.0, "id", until, "", 0])
    else:
        client.hset(key, "claim", f'["id 1.0 {until}",{{}},{{}}]')


def put_failing(client: Any, key: str, attempts: int, at: float, reason: str) -> None:
    """Store that all attempts to send the run that was due at ``at`` have failed."""
    if IS_THIRD:
        put_state(client, key, failing=[at, attempts, reason, at, at, ""])
        return
    definition, meta = client.hmget(key, "definition", "meta")
    claim = f'["- {at:.6f} 0 {at:.6f} l2",{definition},{meta}]'
    failing = json.dumps([f"{attempts} {at:.6f} {at:.6f}", reason, reason], separators=(",", ":"))
    client.hset(key, mapping={"claim": claim, "failing": failing})


def put_results(
    client: Any, key: str, success: float, failures: int, since: float, *ends: tuple[float, Ended]
) -> None:
    """Store what workers reported. Each end has the nominal time of its run; UNIX seconds."""
    if IS_THIRD:
        results = {"success": success, "failures": failures, "since": since}
        put_state(client, key, results=results)
        lines = ",\n".join(result_line(end) for _, end in ends)
        client.hset(key, "results", f"[{lines}]")
        return
    text = f"{success:.6f} {failures} - {since:.6f}\n"
    for at, end in ends:
        took = "-" if end.seconds is None else f"{end.seconds}"
        words = (f"{at:.6f}".rstrip("0").rstrip("."), f"{end.at}", took, end.retries, end.state)
        text += " ".join(map(str, words)) + (f" {end.error}" if end.error else "") + "\n"
    client.hset(key, "results", json.dumps(text))
