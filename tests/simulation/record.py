"""Everything that can be observed in a simulation; the oracle uses nothing else."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.scenario import Scenario, Step


@dataclass(frozen=True, slots=True)
class Arrival:
    """A message that reached the broker; instants are seconds since the beginning.

    ``at`` is the true time. ``clock`` is the wall clock of the schedule's server and ``nominal``
    the nominal instant, both in UNIX seconds. ``version`` is the number of the operation that wrote
    the content of the message. ``triggered`` is true for manual runs and for backfills. ``wrong``
    is by how many seconds the message expires too late by ``clock``, negative if too early.
    """

    at: float
    clock: float
    entry: str
    task_id: str
    nominal: float
    version: int
    triggered: bool
    coalesced: int
    #: Name of the beat that sent the message.
    sender: str = ""
    wrong: float = 0.0


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
    """Everything that can be observed in a simulation."""

    scenario: Scenario
    arrivals: list[Arrival] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)
    #: Beginning and end of each fault in seconds, and its kind.
    disturbances: list[tuple[float, float, str]] = field(default_factory=list)
    #: When the clock of each host began to drift: time, and seconds gained per second.
    drifts: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    #: The periods in which each process had a fault.
    hit: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    #: When stored data was replaced by older data, and the time of the older data.
    rollbacks: list[tuple[float, float]] = field(default_factory=list)
    #: Runs in a worker: entry, task id, beginning, end.
    runs: list[tuple[str, str, float, float]] = field(default_factory=list)
    #: Beats that exited by themselves, and why.
    exits: list[tuple[float, str, str]] = field(default_factory=list)
    #: Beats that read an entry again and again without progress: time, beat and entry.
    loops: list[tuple[float, str, str]] = field(default_factory=list)
    #: Runs that a RedBeat 2.4.2 beat sent, as time, entry and version; also when such a beat held
    #: the lock.
    legacy_runs: list[tuple[float, str, int]] = field(default_factory=list)
    legacy_leads: list[tuple[float, float]] = field(default_factory=list)
    #: The hosts of the beats that held the lock, with the time at which each was first observed.
    holders: list[tuple[float, str]] = field(default_factory=list)
    quarantined: list[str] = field(default_factory=list)
    #: For each entry stored at the end, by name: whether the entry is enabled.
    stored: dict[str, bool] = field(default_factory=dict)
    #: For each entry that is due at the end, by name: for how many seconds.
    overdue: dict[str, float] = field(default_factory=dict)
    #: The entries whose run could not be sent, at the end, by name.
    failing: list[str] = field(default_factory=list)
    #: These entries in each second of the simulation: time and name.
    failures: list[tuple[float, str]] = field(default_factory=list)
    #: The stored entries that are not in the set of due times, at the end, by name.
    unlisted: list[str] = field(default_factory=list)
    trace: list[tuple[int, str, str]] = field(default_factory=list)
    #: Steps with a decision that were not idle; among them, looks at a clock and requests.
    points: int = 0
    looks: int = 0
    requests: int = 0
    #: Switches between processes, and the different orders of requests.
    switches: int = 0
    orders: set[int] = field(default_factory=set)
    struck: Counter[str] = field(default_factory=Counter)
