"""Faults of servers: how each fault begins and ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tests.simulation.clocks import SECOND
from tests.simulation.network import Service
from tests.simulation.scenario import Step

if TYPE_CHECKING:
    from tests.simulation.runner import Simulation

LOADING: Final = b"-LOADING Redis is loading the dataset in memory\r\n"


def _stall(simulation: Simulation, step: Step, service: Service) -> None:
    service.stalled_until = simulation.world.now + int(step.seconds * SECOND)


def _slow(simulation: Simulation, step: Step, service: Service) -> None:
    delay = int(step.fields["delay"] * SECOND)

    def fast() -> None:
        service.delay -= delay

    service.delay += delay
    simulation.after(step.seconds, fast)


def _memory_full(simulation: Simulation, step: Step, service: Service) -> None:
    service.engine.fill_memory(True)
    simulation.after(step.seconds, service.engine.fill_memory, False)


def _replica(simulation: Simulation, step: Step, service: Service) -> None:
    service.engine.make_replica(True)
    simulation.after(step.seconds, service.engine.make_replica, False)


def _demoted(_simulation: Simulation, _step: Step, service: Service) -> None:
    service.demote()


def _loading(simulation: Simulation, step: Step, service: Service) -> None:
    def loaded() -> None:
        service.answer = b""

    service.answer = LOADING
    service.break_connections()
    simulation.after(step.seconds, loaded)


def _clock(simulation: Simulation, step: Step, service: Service) -> None:
    jump, host = int(step.fields["jump"] * SECOND), service.engine.host

    def back() -> None:
        host.offset -= jump

    host.offset += jump
    simulation.after(step.seconds, back)


def _scripts_forgotten(_simulation: Simulation, _step: Step, service: Service) -> None:
    service.engine.forget_scripts()


def _lock_deleted(_simulation: Simulation, _step: Step, service: Service) -> None:
    with service.engine.writable():
        service.engine.client.delete("redbeat::lock")


def _set_lost(_simulation: Simulation, _step: Step, service: Service) -> None:
    with service.engine.writable():
        service.engine.client.delete("redbeat::schedule")


def _restart(simulation: Simulation, step: Step, service: Service) -> None:
    def come_back() -> None:
        service.engine.forget_scripts()
        service.down = False

    service.stop()
    simulation.after(step.seconds, come_back)


def _no_data(simulation: Simulation, step: Step, service: Service) -> None:
    _restart(simulation, step, service)
    with service.engine.writable():
        service.engine.client.flushall()
    simulation.record.rollbacks.append((simulation.seconds, 0.0))


def _older_data(simulation: Simulation, step: Step, service: Service) -> None:
    _restart(simulation, step, service)
    taken_at, stored = simulation.snapshots[step]
    with service.engine.writable():
        service.engine.restore(stored)
    simulation.record.rollbacks.append((simulation.seconds, taken_at))


#: The functions that begin each fault in :data:`tests.simulation.scenario.SERVER_FAULTS`.
SERVER_FAULTS: Final[dict[str, Callable[[Simulation, Step, Service], None]]] = {
    "demoted": _demoted,
    "loading": _loading,
    "lock deleted": _lock_deleted,
    "memory full": _memory_full,
    "no data": _no_data,
    "older data": _older_data,
    "replica": _replica,
    "restart": _restart,
    "scripts forgotten": _scripts_forgotten,
    "server clock": _clock,
    "set lost": _set_lost,
    "slow": _slow,
    "stall": _stall,
}
