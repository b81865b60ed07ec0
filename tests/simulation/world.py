"""Virtual time, the processes that run in it, and the faults at their steps."""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Final

from greenlet import GreenletExit, getcurrent, greenlet

from tests.simulation.clocks import Host, Source, microseconds

#: Minimum and maximum latency of a message in the network, in microseconds.
LATENCY: Final = (50, 800)

#: A simulation with more steps than this in :data:`BUSY_SPAN` is ended: a process retries forever.
BUSIEST: Final = 15_000
BUSY_SPAN: Final = 10_000_000

#: Number of requests in the orders that are compared.
WINDOW: Final = 6

#: Faults of a process; all other faults affect one of its requests.
OF_PROCESS: Final = ("kill", "freeze")

MASK: Final = (1 << 64) - 1


def mixed(number: int) -> int:
    """Return 64 bits that look random and are computed from ``number`` (splitmix64)."""
    number = (number + 0x9E3779B97F4A7C15) & MASK
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & MASK
    return number ^ (number >> 31)


class StuckError(BaseException):
    """Raised when a process makes no progress: it takes steps but hardly any time passes."""


class Fault:
    """A fault of a process at one of its steps.

    Arguments:
        kind: what happens, see :data:`tests.simulation.scenario.STEP_FAULTS`.
        step: the number of the step, counted from 1 since the fault was armed; for faults of
            requests, the number of the request.
        seconds: how long the fault lasts.
        looks: whether reading a clock counts as a step of the process.
    """

    __slots__ = ("kind", "looks", "seconds", "step")

    def __init__(self, kind: str, step: int, seconds: float = 0.0, looks: bool = True) -> None:
        self.kind, self.step, self.seconds, self.looks = kind, step, seconds, looks

    def __repr__(self) -> str:
        return f"<{self.kind} at step {self.step}>"


class Process:
    """A program in the simulation: a greenlet that runs only when the world resumes it.

    A killed process is never resumed, so not even its ``finally`` blocks run.
    """

    def __init__(self, world: World, name: str, host: Host, main: Callable[[], Any]) -> None:
        self.world, self.name, self.host = world, name, host
        self.alive = True
        self.ended_by: BaseException | None = None
        self.frozen_until = 0
        #: Numbers of steps so far: all steps, steps other than reading a clock, and requests.
        self.steps = self.moves = self.requests = 0
        #: Whether there was a request since the last check for idleness, and the numbers of steps
        #: and moves at this check.
        self.busy = True
        self.looked_at = self.moved_at = 0
        self.faults: list[Fault] = []
        self.sockets: list[Any] = []
        self.on_end: Callable[[], None] | None = None
        self._ticket = 0
        self._main = main
        self._greenlet = greenlet(self._run, parent=world.hub)

    def __repr__(self) -> str:
        return f"<{self.name}>"

    def _run(self) -> None:
        try:
            self._main()
        except BaseException as error:  # The world continues without this process.
            self.ended_by = error
        if self.world.over:
            return
        self.alive = False
        self.close_sockets()
        if self.on_end is not None:
            self.on_end()

    def start(self, at: int) -> None:
        """Start the process at a time."""
        self.world.at(at, self._resumed, 0, owner=self)

    def finish(self) -> None:
        """Release the process after the end of the world; its actions have no more effect."""
        if not self._greenlet.dead:
            self._greenlet.throw(GreenletExit)

    def kill(self) -> None:
        """End the process immediately; a call from the process itself never returns."""
        self.alive = False
        self.world.note(self.name, "killed")
        self.close_sockets()
        if self.on_end is not None:
            self.on_end()
        if getcurrent() is self._greenlet:
            self.world.hub.switch()

    def idled(self) -> None:
        """Count the steps of a wait without a result as idle, unless there was a request."""
        if not self.busy:
            self.world.idle += self.steps - self.looked_at
            self.world.idle_moves += self.moves - self.moved_at
        self.busy, self.looked_at, self.moved_at = False, self.steps, self.moves

    def close_sockets(self) -> None:
        """Close the sockets of the process, as an operating system does."""
        for sock in [*self.sockets]:
            sock.close()

    def arm(self, fault: Fault) -> None:
        """Arm a fault, which then happens at a later step."""
        fault.step += self._count(fault)
        self.faults.append(fault)

    def _count(self, fault: Fault) -> int:
        """Return how many steps so far count for this fault."""
        if fault.kind not in OF_PROCESS:
            return self.requests
        return self.steps if fault.looks else self.moves

    def step(self, what: str) -> Fault | None:
        """Count a step; return the network fault at this step, or None.

        Faults of the process itself (a kill or a freeze) happen here.
        """
        if self.world.over:
            raise GreenletExit
        self.steps += 1
        self.world.points += 1
        self.world.watch(self)
        asks = what.startswith("request")
        self.moves += what != "clock"
        if asks:
            self.requests += 1
            self.busy = True
            self.world.remember(self, what)
        if not self.faults:
            return None
        for fault in self.faults:
            of_process = fault.kind in OF_PROCESS
            if fault.step > self._count(fault):
                continue
            if of_process or asks:
                self.faults.remove(fault)
                self.world.note(self.name, f"fault: {fault.kind}, {fault.seconds:g} s, at: {what}")
                self.world.struck[fault.kind] += 1
                self.world.on_strike(fault)
                return self._struck(fault)
        return None

    def _struck(self, fault: Fault) -> Fault | None:
        if fault.kind == "kill":
            self.kill()
        if fault.kind != "freeze":
            return fault
        self.frozen_until = self.world.now + microseconds(fault.seconds)
        self.wait_until(self.frozen_until)
        return None

    def wait_until(self, until: int | None) -> None:
        """Pause until a time or until :meth:`wake`; without a time, only until :meth:`wake`."""
        if self.world.over:
            raise GreenletExit
        self._ticket += 1
        if until is not None:
            self.world.at(until, self._resumed, self._ticket, owner=self)
        self.world.hub.switch()

    def wake(self) -> None:
        """Continue a waiting process now."""
        self.world.at(self.world.now, self._resumed, self._ticket, owner=self)

    def go_on(self) -> None:
        """Continue a waiting process within this event; a frozen process waits for its thaw."""
        if self.frozen_until > self.world.now:
            self.wake()
        else:
            self._resumed(self._ticket)

    def _resumed(self, ticket: int) -> None:
        if ticket != self._ticket or not self.alive:
            return
        self._ticket += 1
        world = self.world
        world.switches += world.last is not self
        world.last = world.current = self
        try:
            self._greenlet.switch()
        finally:
            world.current = None


#: Time, order among equal times, number, action, its arguments, process, and whether the event
#: waits until a frozen process thaws.
Event = tuple[int, int, int, Any, tuple[Any, ...], "Process | None", bool]


class Order:
    """An order of steps: one process runs until a switch to another process.

    Arguments:
        since: beginning and end of the period in which steps are counted, in microseconds.
        switches: numbers of the steps before which there is a switch; steps count only if another
            process could run.
    """

    def __init__(self, since: int, until: int, switches: tuple[int, ...]) -> None:
        self.since, self.until, self.switches = since, until, switches
        self.steps = 0
        self._current = ""

    def choose(self, names: set[str], now: int) -> str:
        """Return the name of the process that runs next."""
        if not self.since <= now <= self.until:
            return min(names)
        if self._current not in names:
            self._current = min(names)
        if len(names) > 1:
            if self.steps in self.switches:
                self._current = min(names - {self._current})
            self.steps += 1
        return self._current


class World(Source):
    """One simulation: a queue of events in virtual time.

    Arguments:
        seed: the source of all randomness.
        start: the true time of the beginning, in microseconds since 1970.
    """

    def __init__(self, seed: int, start: int) -> None:
        self.seed, self.now, self.start = seed, start, start
        self.hub = getcurrent()
        #: Whether the simulation is over.
        self.over = False
        self.current: Process | None = None
        self.last: Process | None = None
        self.processes: list[Process] = []
        self.nowhere = Host("nowhere")
        self.trace: list[tuple[int, str, str]] = []
        #: Numbers of steps with a decision, of idle steps among them, of idle steps that do not
        #: read a clock, and of switches between processes.
        self.points = self.idle = self.idle_moves = self.switches = 0
        #: The different orders of :data:`WINDOW` requests from several processes.
        self.orders: set[int] = set()
        self._last_requests: deque[tuple[str, str]] = deque(maxlen=WINDOW)
        #: How many faults of each kind happened.
        self.struck: Counter[str] = Counter()
        #: Called when a fault happens.
        self.on_strike: Callable[[Fault], None] = lambda _fault: None
        #: Minimum and maximum latency of a message, in microseconds.
        self.delays = LATENCY
        #: Chooses the next process if several can run; None for a random choice.
        self.order: Order | None = None
        self._events: list[Event] = []
        self._count = self._drawn = 0
        #: The process that made no progress and thus ended the simulation.
        self.stuck: Process | None = None
        self._watched_from, self._watched_points = start, 0

    # -- events --------------------------------------------------------------------------------

    def at(
        self,
        when: int,
        action: Callable[..., Any],
        *args: Any,
        owner: Process | None = None,
        thaw: bool = True,
    ) -> None:
        """Run ``action`` at a time; the actions of a frozen process wait until it thaws."""
        self._count += 1
        when = max(when, self.now)
        place = self.chance(self._count) if self.order is None else 0
        event = when, place, self._count, action, args, owner, thaw
        heapq.heappush(self._events, event)

    def run(self, until: int) -> None:
        """Run events until the virtual time ``until``."""
        events = self._events
        while events and events[0][0] <= until and self.stuck is None:
            if self.order is None:
                when, _, _, action, args, owner, thaw = heapq.heappop(events)
            else:
                when, _, _, action, args, owner, thaw = self._chosen()
            self.now = max(self.now, when)
            if thaw and owner is not None and owner.frozen_until > self.now:
                self.at(owner.frozen_until, action, *args, owner=owner)
                continue
            action(*args)
        self.now = max(self.now, until)

    def watch(self, process: Process) -> None:
        """End the simulation if a process takes many steps in too little time."""
        if self.now - self._watched_from > BUSY_SPAN:
            self._watched_from, self._watched_points = self.now, self.points
        elif self.points - self._watched_points > BUSIEST:
            self.stuck = process
            raise StuckError(f"{process.name} took {BUSIEST} steps in a few seconds")

    def _chosen(self) -> Event:
        """Return the next event in the configured order: normally an event of the last process."""
        when, same = self._events[0][0], []
        while self._events and self._events[0][0] == when:
            same.append(heapq.heappop(self._events))
        same.sort(key=lambda event: event[2])
        order = self.order
        assert order is not None
        chosen = same[0]
        if all(event[5] is not None for event in same):
            names = {event[5].name for event in same if event[5] is not None}
            preferred = order.choose(names, when)
            chosen = next(event for event in same if event[5] and event[5].name == preferred)
        for event in same:
            if event is not chosen:
                heapq.heappush(self._events, event)
        return chosen

    def steps_in_order(self) -> int:
        """Return at how many steps the order chose the process."""
        return 0 if self.order is None else self.order.steps

    def process(self, name: str, host: Host, main: Callable[[], Any]) -> Process:
        """Return a new process, which the caller must start."""
        process = Process(self, name, host, main)
        self.processes.append(process)
        return process

    def remember(self, process: Process, request: str) -> None:
        """Record the order of the last requests from the processes."""
        window = self._last_requests
        window.append((process.name, request))
        if len(window) == WINDOW and len({name for name, _ in window}) > 1:
            self.orders.add(hash(tuple(window)))

    def end(self) -> None:
        """Release all processes, including killed ones, and close their connections."""
        self.over = True
        for process in self.processes:
            process.finish()
            process.close_sockets()

    def note(self, who: str, what: str) -> None:
        """Add an event to the trace."""
        if self.over:
            return
        self.trace.append((self.now, who, what))

    # -- chance --------------------------------------------------------------------------------

    def chance(self, number: int) -> int:
        """Return 64 bits derived from the seed and from ``number``."""
        return mixed(self.seed * 0x100000001B3 + number)

    def latency(self, who: int, number: int) -> int:
        """Return the latency of message ``number`` on connection ``who``, in microseconds."""
        low, high = self.delays
        return low + self.chance((who << 32) + number) % max(high - low, 1)

    # -- called by the replaced functions ----------------------------------------------------------

    def wall(self) -> int:
        process = self.current
        if process is None:
            return self.now
        process.step("clock")
        return process.host.wall(self.now)

    def monotonic(self) -> int:
        process = self.current
        if process is None:
            return self.now - self.start
        process.step("clock")
        return process.host.monotonic(self.now) - self.start

    def sleep(self, seconds: float) -> None:
        process = self.current
        if self.over:
            raise GreenletExit
        if process is None:
            raise RuntimeError("only processes of the simulation sleep")
        process.step("sleep")
        process.wait_until(self.now + process.host.lasting(seconds))

    def host_name(self) -> str:
        return self.nowhere.name if self.current is None else self.current.host.name

    def random_bytes(self, count: int) -> bytes:
        drawn = bytearray()
        while len(drawn) < count:
            self._drawn += 1
            drawn += self.chance(-self._drawn).to_bytes(8, "big")
        return bytes(drawn[:count])
