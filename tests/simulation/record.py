"""What can be seen of a simulation from outside: the oracle judges this and nothing else."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.scenario import Scenario, Step

__all__ = ("Action", "Arrival", "Record")


@dataclass(frozen=True, slots=True)
class Arrival:
    """A message that reached the broker; instants are seconds since the beginning.

    ``at`` is the true time, ``clock`` the wall clock of the schedule's server, UNIX seconds, like
    ``nominal``. ``version`` numbers the operation that wrote what the message says.
    """

    at: float
    clock: float
    entry: str
    task_id: str
    nominal: float
    version: int
    triggered: bool
    coalesced: int
    #: Name of the beat that sent it.
    sender: str = ""


@dataclass(slots=True)
class Action:
    """An operation of an application: when it began and ended, and whether it succeeded."""

    step: Step
    version: int
    began: float
    ended: float = float("inf")
    outcome: str = "unknown"
    result: Any = None
    definition: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Record:
    """All that can be seen of a simulation from outside."""

    scenario: Scenario
    arrivals: list[Arrival] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)
    #: When faults began and ended, seconds, and which.
    disturbances: list[tuple[float, float, str]] = field(default_factory=list)
    #: When faults of its own struck each process.
    hit: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    #: Instants to which, and at which, stored data went back: (from, to).
    rollbacks: list[tuple[float, float]] = field(default_factory=list)
    #: Runs of a worker: entry, task id, began, ended.
    runs: list[tuple[str, str, float, float]] = field(default_factory=list)
    #: Beats that ended by themselves, and why.
    exits: list[tuple[float, str, str]] = field(default_factory=list)
    #: Runs that a beat of 2.4.2 sent: when, entry, version; and when such a beat had the lock.
    legacy_runs: list[tuple[float, str, int]] = field(default_factory=list)
    legacy_leads: list[tuple[float, float]] = field(default_factory=list)
    #: Hosts of the beats that held the lock, each when it was first seen to.
    holders: list[tuple[float, str]] = field(default_factory=list)
    quarantined: list[str] = field(default_factory=list)
    #: What is stored at the end: whether each entry is enabled, by name.
    stored: dict[str, bool] = field(default_factory=dict)
    trace: list[tuple[int, str, str]] = field(default_factory=list)
    #: Steps at which something was decided and that were no idleness, changes from one process to
    #: another, and different orders of requests.
    points: int = 0
    switches: int = 0
    orders: set[int] = field(default_factory=set)
    struck: Counter[str] = field(default_factory=Counter)
