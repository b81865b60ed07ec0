"""Two beats, two entries, and one fault at every step, in all orders with at most two switches.

With one Redis, the first entry has exactly-once delivery. With a separate broker, it has
at-least-once delivery. The second entry always has at-most-once delivery.

Messages take no time here, so a beat decides, publishes and records in one instant. Only the order
of the beats and the step of the fault vary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations, count, product
from typing import Final

from tests.simulation.engine import Engine
from tests.simulation.oracle import judge
from tests.simulation.record import Record
from tests.simulation.runner import Simulation
from tests.simulation.scenario import STEP_FAULTS, Scenario, Step

#: The profile in the scenario of a case.
PROFILE: Final = "exhaustive"
#: The beats of a case.
BEATS: Final = ("beat-1", "beat-2")
#: When both entries are due and the counting of steps ends, in seconds since the beginning.
DUE: Final = 4.0
COUNTED: Final = 0.001
#: Seconds from that time to the end: longer than a hold and a takeover together.
REST: Final = 44.0
#: Seconds for which a beat is frozen or a message is delayed: longer than a hold.
LONG: Final = 32.0


@dataclass(frozen=True, slots=True)
class Case:
    """One run with at most one fault at a step of a beat, and with switches before some steps."""

    locked: bool
    separate: bool = False
    fault: str = ""
    beat: str = ""
    step: int = 0
    switches: tuple[int, ...] = ()

    def __str__(self) -> str:
        fault = f"{self.fault} at step {self.step} of {self.beat}" if self.fault else "no fault"
        mode = "one leader" if self.locked else "no lock"
        broker = "separate broker" if self.separate else "one Redis"
        return f"{mode}, {broker}, {fault}, switches before steps {list(self.switches)}"

    @property
    def text(self) -> str:
        """Return the case in the form that :meth:`from_text` reads."""
        mode = "lock" if self.locked else "no-lock"
        broker = "separate" if self.separate else "same"
        switches = ",".join(map(str, self.switches))
        return f"{mode}/{broker}/{self.fault}/{self.beat}/{self.step}/{switches}"

    @classmethod
    def from_text(cls, text: str) -> Case:
        """Return the case from the text that a failed search prints."""
        mode, broker, fault, beat, step, switches = text.split("/")
        numbers = tuple(int(number) for number in switches.split(",") if number)
        return cls(mode == "lock", broker == "separate", fault, beat, int(step), numbers)

    def scenario(self) -> Scenario:
        """Return the case in the form of a scenario."""
        entries = (
            {"kind": "clocked", "after": DUE - 2.0},
            {"kind": "every", "seconds": DUE - 2.0, "delivery": "at_most_once"},
        )
        steps = [
            Step(2.0, "save", f"web-{number + 1}", f"entry-{number}", fields=fields)
            for number, fields in enumerate(entries)
        ]
        # Each beat publishes once before, to be connected to the broker.
        steps += [
            Step(0.5, "save", "web-3", "warm-up 1", fields={"kind": "clocked", "after": 0.5}),
            Step(0.6, "save", "web-3", "warm-up 2", fields={"kind": "clocked", "after": 0.9}),
            Step(1.2, "freeze", "beat-1", seconds=0.6),
        ]
        if self.fault:
            steps.append(
                Step(
                    DUE - 0.01,
                    self.fault,
                    self.beat,
                    step=self.step,
                    seconds=LONG,
                    fields={"looks": False},
                )
            )
        return Scenario(
            seed=1,
            locked=self.locked,
            separate_broker=self.separate,
            duration=DUE + REST,
            calm=REST - 1.0,
            lock_timeout=5.0,
            steps=tuple(steps),
            profile=PROFILE,
            order=(DUE - 0.005, DUE + COUNTED, *self.switches),
        )


class Exploration:
    """Runs all cases, counts them, and collects the failed ones.

    The cases with switches can be divided into pieces: the first of three pieces, ``(1, 3)``, has
    each third case. All pieces have the cases without a switch.
    """

    def __init__(
        self,
        engines: dict[str, Engine],
        switches: int = 2,
        kinds: Sequence[str] = (),
        beats: Sequence[str] = BEATS,
        piece: tuple[int, int] = (1, 1),
    ) -> None:
        self._engines, self._most = engines, switches
        self._kinds, self._beats = kinds or tuple(STEP_FAULTS), beats
        self._number, self._pieces = piece
        #: The number of cases with switches, of all pieces.
        self.with_switches = 0
        self.runs = self.points = 0
        self.failures: list[tuple[Case, list[str]]] = []
        self.struck: Counter[str] = Counter()

    def run(self, case: Case) -> Simulation:
        """Run one case."""
        simulation = Simulation(case.scenario(), self._engines)
        record = simulation.run()
        self.runs += 1
        self.points += record.points
        self.struck.update(record.struck)
        wrong = judged(record)
        if wrong:
            self.failures.append((case, wrong))
        return simulation

    def explore(self, locked: bool, separate: bool) -> None:
        """Run all cases of a mode: without a fault, then with each fault at each step."""
        self._orders(self.run(Case(locked, separate)), Case(locked, separate))
        for beat in self._beats:
            for kind in self._kinds:
                for step in count(1):
                    case = Case(locked, separate, kind, beat, step)
                    simulation = self.run(case)
                    if not fault_matters(case, simulation.record):
                        break
                    self._orders(simulation, case)

    def _orders(self, simulation: Simulation, case: Case) -> None:
        """Run a case again in all other orders; ``simulation`` is its run without a switch."""
        steps = simulation.world.steps_in_order()
        for number in range(1, self._most + 1):
            for switches in combinations(range(steps), number):
                self.with_switches += 1
                if self.with_switches % self._pieces == self._number % self._pieces:
                    self.run(replace(case, switches=switches))


def fault_matters(case: Case, record: Record) -> bool:
    """Return whether the fault happens while the runs are decided, published and recorded."""
    return any(
        what == case.fault and DUE <= begin <= DUE + COUNTED
        for begin, _, what in record.disturbances
    )


def judged(record: Record) -> list[str]:
    """Return the violations in a record; a case of the search has more rules."""
    more = judge_case(record) if record.scenario.profile == PROFILE else []
    return [*judge(record), *more]


def judge_case(record: Record) -> list[str]:
    """Return the violations that the oracle tolerates after faults, but that are wrong here."""
    scenario = record.scenario
    faulty = any(step.at > DUE - 1.0 for step in scenario.steps)
    ids = [arrival.task_id for arrival in record.arrivals if arrival.entry == "entry-0"]
    wrong = []
    if not ids:
        wrong.append("entry-0: the run was lost")
    if len(set(ids)) > 1:
        wrong.append(f"entry-0: the run has {len(set(ids))} ids")
    most = 2 if faulty and scenario.separate_broker else 1
    if len(ids) > most:
        wrong.append(f"entry-0: the run was sent {len(ids)} times, at most {most} are explained")
    return wrong


def explore(
    engines: dict[str, Engine],
    switches: int,
    locks: Sequence[bool],
    brokers: Sequence[bool],
    kinds: Sequence[str] = (),
    beats: Sequence[str] = BEATS,
    piece: tuple[int, int] = (1, 1),
) -> Exploration:
    """Run all cases with a lock (True in ``locks``) or without, and with some faults of some beats.

    True in ``brokers`` means a separate broker. For ``piece`` see :class:`Exploration`.
    """
    exploration = Exploration(engines, switches, kinds, beats, piece)
    for locked, separate in product(locks, brokers):
        exploration.explore(locked, separate)
    return exploration
