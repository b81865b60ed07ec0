"""Runs a scenario with beats, applications, workers and faults, and records what happens."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, Final, TypeAlias

import celery.beat
import redis
from celery import Celery
from kombu.common import oid_from
from redis.exceptions import ReadOnlyError

import redbeat.beat.early
import redbeat.worker
from redbeat import RedBeatScheduler
from tests.simulation import clocks
from tests.simulation.clocks import SECOND, Host
from tests.simulation.engine import Engine
from tests.simulation.legacy import LegacyBeat
from tests.simulation.network import Network, Service
from tests.simulation.operations import OPERATIONS, PREFIX, Application, OwnScheduler, fields_of
from tests.simulation.progress import Progress
from tests.simulation.record import Action, Arrival, Record
from tests.simulation.scenario import CLOCK_FAULTS, STEP_FAULTS, Scenario, Step
from tests.simulation.server_faults import SERVER_FAULTS
from tests.simulation.world import Fault, Order, Process, World
from tests.workers import end_run

QUEUE: Final = "celery"
#: Seconds after which a beat that exited is restarted.
RESTART: Final = 2.0
#: Microseconds per second by which a clock drifts, for each second in the step of a scenario.
DRIFT: Final = 100
#: Seconds within which a starting beat has written its static entries.
SETTLED: Final = 1.0

#: A ``beat_schedule``: the fields of each entry, and the number of the operation that set them.
Statics: TypeAlias = dict[str, tuple[dict[str, Any], int]]

#: The fewest runs of one instant for which a beat of the profile "early" decides before it.
FEWEST_EARLY: Final = 1


def simulate(scenario: Scenario, engines: dict[str, Engine]) -> Record:
    """Run a scenario on emptied servers, and return the record."""
    return Simulation(scenario, engines).run()


class Simulation:
    """A running scenario."""

    def __init__(self, scenario: Scenario, engines: dict[str, Engine]) -> None:
        self.scenario = scenario
        self.world = World(scenario.seed, int(scenario.start * SECOND))
        self.record = Record(scenario)
        names = ["redis", "broker"] if scenario.separate_broker else ["redis"]
        self.services = {name: Service(self.world, engines[name]) for name in names}
        for service in self.services.values():
            service.engine.reset()
        self.broker = self.services[names[-1]]
        self.broker.on_push = self._drain
        progress = Progress(self._hash_of, self._loops)
        self.services["redis"].on_reply = partial(self._replied, progress)
        self.network = Network(self.world, self.services)
        self.hosts: dict[str, Host] = {}
        self.beats: dict[str, Process] = {}
        self.beat_services: dict[str, Any] = {}
        #: Seconds for which a stopped beat does not run.
        self.down_for: dict[str, float] = {}
        self.runs_waiting: list[tuple[Arrival, dict[str, Any], float]] = []
        self.first_statics = {name: (fields, 0) for name, fields in scenario.statics.items()}
        #: Static entries that were deployed last, that each beat will start with, and that each
        #: beat has started with.
        self.deployed: Statics = self.first_statics
        self.statics: dict[str, Statics] = {}
        self.running_statics: dict[str, Statics] = {}
        self.deploying: list[Action] = []
        #: Faults that wait for a message of an entry.
        self.waiting_faults: list[Step] = []
        self.snapshots: dict[Step, tuple[float, Any]] = {}
        self._version = 0
        self._failing_at = 0
        if scenario.order:
            since, until, *switches = scenario.order
            self.world.order = Order(
                *(self._true(since), self._true(until), tuple(map(int, switches)))
            )
            self.world.delays = (0, 0)
        self.world.on_strike = self._struck

    def run(self) -> Record:
        """Run the scenario to its end, and return the record."""
        # kombu creates one id for the interpreter. Create it now, before any process runs.
        oid_from(self)  # type: ignore[no-untyped-call]
        random.seed(self.scenario.seed)
        clocks.use(self.world)
        self.network.install()
        usual = redbeat.beat.early.FEWEST
        if self.scenario.profile == "early":
            redbeat.beat.early.FEWEST = FEWEST_EARLY
        try:
            self._set_up()
            self.world.run(self._true(self.scenario.duration))
            self._complete()
            self.world.end()
        finally:
            clocks.use(None)
            redbeat.beat.early.FEWEST = usual
        return self.record

    def _complete(self) -> None:
        record, world = self.record, self.world
        if world.stuck is not None:
            record.exits.append((self.seconds, world.stuck.name, "it got stuck"))
        record.quarantined = self._quarantined()
        record.stored = self._stored()
        record.overdue, record.failing = self._overdue(), self._failing()
        record.unlisted = self._unlisted(record.stored)
        record.points, record.switches = world.points - world.idle, world.switches
        moves = sum(process.moves for process in world.processes) - world.idle_moves
        record.looks = record.points - moves
        record.requests = sum(process.requests for process in world.processes)
        record.orders, record.struck = world.orders, world.struck
        record.trace = world.trace

    def _replied(self, progress: Progress, reader: str, reply: bytes) -> None:
        """Examine a reply, and the failing entries with the first reply of each second."""
        progress.replied(reader, reply, self.world.now)
        if self.world.now - self._failing_at >= SECOND:
            self._failing_at = self.world.now
            self.record.failures += [(self.seconds, name) for name in self._failing()]

    def _hash_of(self, name: str) -> Any:
        return self.services["redis"].engine.client.hgetall(PREFIX + name)

    def _loops(self, beat: str, name: str) -> None:
        self.record.loops.append((self.seconds, beat, name))
        self.world.note(beat, f"reads {name} again and again")

    def _quarantined(self) -> list[str]:
        stored = self.services["redis"].engine.client.hgetall(".redbeat::quarantine")
        return [key.decode() for key in stored]

    def _overdue(self) -> dict[str, float]:
        client, now = self.services["redis"].engine.client, self.world.now / SECOND
        due = client.zrangebyscore("redbeat::schedule", 0, now, withscores=True)
        names = {key.decode().removeprefix(PREFIX): now - score for key, score in due}
        return {name: seconds for name, seconds in names.items() if self._hash_of(name)}

    def _failing(self) -> list[str]:
        client = self.services["redis"].engine.client
        return [
            key.decode().removeprefix(PREFIX)
            for key in client.zrange(".redbeat::failing", 0, -1)
            if b'"failing":' in (client.hget(key, "beat_state") or b"")
        ]

    def _unlisted(self, stored: Iterable[str]) -> list[str]:
        client = self.services["redis"].engine.client
        return [
            name for name in stored if client.zscore("redbeat::schedule", PREFIX + name) is None
        ]

    def _stored(self) -> dict[str, bool]:
        client = self.services["redis"].engine.client
        texts = {
            key: client.hget(key, "definition")
            for key in client.keys("redbeat:*")
            if client.type(key) == b"hash"
        }
        definitions = [json.loads(text) for text in texts.values() if text]
        return {one["name"]: bool(one.get("enabled", True)) for one in definitions}

    @property
    def scheduler_class(self) -> type[RedBeatScheduler]:
        """Return the scheduler class of the beats: a subclass if an entry needs it."""
        own = any("answer" in step.fields for step in self.scenario.steps)
        return OwnScheduler if own else RedBeatScheduler

    @property
    def seconds(self) -> float:
        """Return the true time in seconds since the beginning."""
        return (self.world.now - self.world.start) / SECOND

    # -- participants ----------------------------------------------------------------------------

    def _set_up(self) -> None:
        self.at(self.scenario.duration - self.scenario.calm, self._disarm)
        for number in range(self.scenario.beats):
            self._start_beat(f"beat-{number + 1}", self.scenario.beats_from + number * 0.2)
        if self.scenario.leader:
            self.at(1, self._look_at_lock)
        by_web: dict[str, list[Step]] = {}
        for step in self.scenario.steps:
            if step.who.startswith("web"):
                by_web.setdefault(step.who, []).append(step)
                continue
            if step.what == "older data":
                self.at(max(step.at - step.fields["age"], 0.0), self._take_snapshot, step)
            self.at(step.at, self._strike, step)
        for name, steps in by_web.items():
            self._start(name, partial(self._web, name, steps), 0.0)
        if any("takes" in step.fields for step in self.scenario.steps):
            self._start("worker", self._worker, 0.0)

    def _true(self, seconds: float) -> int:
        """Return the true time at ``seconds`` after the beginning, in microseconds."""
        return self.world.start + int(seconds * SECOND)

    def after(self, seconds: float, action: Callable[..., Any], *args: Any) -> None:
        """Run ``action`` some seconds from now."""
        self.at(self.seconds + seconds, action, *args)

    def at(self, seconds: float, action: Callable[..., Any], *args: Any) -> None:
        """Run ``action`` some seconds after the beginning."""
        self.world.at(self._true(seconds), action, *args)

    def _start(self, name: str, main: Callable[[], Any], after: float) -> Process:
        host = self.hosts.setdefault(name, Host(name, since=self.world.now))
        process = self.world.process(name, host, main)
        process.start(self.world.now + int(after * SECOND))
        return process

    def app_of(self, name: str) -> Celery:
        """Return the app that a process creates when it starts."""
        broker = "broker" if self.scenario.separate_broker else "redis"
        app = Celery(name, broker=f"redis://{broker}:6379/1", set_as_current=False)
        app.conf.update(
            redbeat_redis_url="redis://redis:6379/0",
            redbeat_lock_timeout=self.scenario.lock_timeout,
            timezone="UTC",
            enable_utc=True,
            result_expires=None,
            **self.scenario.settings,
            **self.scenario.beat_settings.get(name, {}),
        )
        if not self.scenario.locked:
            app.conf.redbeat_lock_key = None
        if any("takes" in step.fields for step in self.scenario.steps):
            redbeat.worker.enable(app)
        return app

    # -- beats -----------------------------------------------------------------------------------

    def _start_beat(self, name: str, after: float = 0.0) -> None:
        def main() -> None:
            app, statics = self.app_of(name), self.statics.get(name, self.first_statics)
            app.conf.beat_schedule = {
                entry: fields_of(fields, version, self.world.start)
                for entry, (fields, version) in statics.items()
            }
            self._is_deployed(statics, name)
            if self.scenario.embedded:
                self._tick_when_due(self.scheduler_class(app=app))
            service = celery.beat.Service(app, scheduler_cls=self.scheduler_class)
            self.beat_services[name] = service
            service.start()

        process = self._start(name, main, after)
        process.on_end = lambda: self._beat_ended(name, process)
        self.beats[name] = process

    def _tick_when_due(self, scheduler: RedBeatScheduler) -> None:
        """Act as a program with an embedded beat that ticks only when an entry is due."""
        stored = self.services["redis"].engine.client
        while True:
            seconds = scheduler.tick()
            first = stored.zrangebyscore("redbeat::schedule", 0, "inf", 0, 1, withscores=True)
            due = first[0][1] - self.world.now / SECOND if first else seconds
            self.world.sleep(due if due > 0 else seconds)

    def _beat_ended(self, name: str, process: Process) -> None:
        if process.ended_by is not None:
            self.record.exits.append((self.seconds, name, repr(process.ended_by)))
            self.world.note(name, f"exited: {process.ended_by!r}")
        down = max(self.down_for.pop(name, 0.0), RESTART)
        self.after(down, self._start_beat, name)

    def _start_legacy(self, step: Step) -> None:
        """Run a RedBeat 2.4.2 beat for some seconds, then stop or kill it."""
        end = "broker" if self.scenario.separate_broker else "redis"
        leading: list[float] = []
        beat = LegacyBeat(
            redis.Redis("redis", socket_timeout=5.0),
            redis.Redis(end, db=1, socket_timeout=5.0),
            self.scenario.lock_timeout,
            lambda: leading.append(self.seconds),
        )
        process = self._start(step.who, beat.run, 0.0)

        def ended() -> None:
            self.world.note(step.who, f"ended: {process.ended_by!r}")
            if leading:
                self.record.legacy_leads.append((leading[0], self.seconds))

        def stop() -> None:
            beat.stopping = True

        process.on_end = ended
        self.at(step.at + step.seconds, process.kill if step.fields["killed"] else stop)

    def _deploy(self, step: Step) -> None:
        """Restart the beats one by one with another ``beat_schedule``."""
        self._version += 1
        before, after = self.deployed, step.fields["statics"]
        versions = dict.fromkeys(after, self._version)
        versions.update({name: v for name, (one, v) in before.items() if after.get(name) == one})
        self.deployed = {name: (fields, versions[name]) for name, fields in after.items()}
        self.deploying = []
        for name in sorted({*before, *after}):
            if before.get(name) == self.deployed.get(name):
                continue
            what = "save" if name in after else "delete"
            action = Action(replace(step, what=what, entry=name), self._version, self.seconds)
            action.definition = {**after.get(name, {}), "made_at": self.seconds}
            self.record.actions.append(action)
            # While several beats share the work, no beat removes entries that are no longer
            # configured.
            if name in after or self.scenario.locked:
                self.deploying.append(action)
        for number, beat in enumerate(sorted(self.beats)):
            self.at(step.at + number * step.seconds, self._redeploy, beat, self.deployed)
        self._disturbed("deploy", len(self.beats) * step.seconds + 2 * RESTART)

    def _redeploy(self, name: str, statics: Statics) -> None:
        self.statics[name] = statics
        if self.beats[name].alive:
            self.beat_services[name].stop()

    def _is_deployed(self, statics: Statics, name: str) -> None:
        """Record that a beat started with a configuration; the last beat completes a deployment."""
        self.running_statics[name] = statics
        if all(self.running_statics.get(beat) is self.deployed for beat in self.beats):
            for action in self.deploying:
                action.ended, action.outcome = self.seconds + SETTLED, "done"
            self.deploying = []

    # -- applications ----------------------------------------------------------------------------

    def _web(self, name: str, steps: list[Step]) -> None:
        client = redis.Redis("redis", socket_timeout=5.0)
        application = Application(self.app_of(name), self.world, client)
        for step in steps:
            self.world.sleep(max(step.at - self.seconds, 0))
            self._act(name, application, step)

    def _act(self, name: str, application: Application, step: Step) -> None:
        self._version += 1
        action = Action(step, self._version, self.seconds)
        self.record.actions.append(action)
        try:
            action.result = OPERATIONS[step.what](application, step, action)
            action.outcome = "done"
        except KeyError:
            action.outcome = "missing"
        except Exception as error:
            action.outcome = f"failed: {error!r}"
        action.ended = self.seconds
        self.world.note(name, f"{step.what} {step.entry} v{action.version}: {action.outcome}")

    # -- workers ---------------------------------------------------------------------------------

    def _drain(self, sender: str) -> None:
        """Read the messages that arrived."""
        client = self.broker.engine.messages
        clock = self.services["redis"].engine.host.wall(self.world.now) / SECOND
        try:
            texts = client.rpop(QUEUE, 1000) or []
        except ReadOnlyError:
            return  # A replica has received no message.
        for text in texts:
            self._arrived(json.loads(text), clock, sender)

    def _arrived(self, envelope: dict[str, Any], clock: float, sender: str) -> None:
        headers = envelope["headers"]
        kwargs = json.loads(envelope_body(envelope))[1]
        if "scheduled_at" not in headers:
            name, version = headers["periodic_task_name"], kwargs["version"]
            self.record.legacy_runs.append((self.seconds, name, version))
            self.world.note("broker", f"{name}: v{version} of an older beat")
            return
        arrival = Arrival(
            at=self.seconds,
            clock=clock,
            entry=headers["periodic_task_name"],
            task_id=headers["id"],
            nominal=datetime.fromisoformat(headers["scheduled_at"]).timestamp(),
            version=kwargs["version"],
            triggered=bool(headers.get("triggered") or headers.get("backfilled")),
            coalesced=int(headers.get("coalesced") or 0),
            sender=sender,
        )
        if "expires" in kwargs:
            at = datetime.fromisoformat(headers["expires"]).timestamp()
            arrival = replace(arrival, wrong=at - clock - kwargs["expires"])
        self.record.arrivals.append(arrival)
        late = arrival.clock - arrival.nominal
        kind = "triggered run" if arrival.triggered else f"run {arrival.nominal:.6f}"
        self.world.note(
            "broker",
            f"{arrival.entry}: {kind} v{arrival.version}, {late:.3f} s late, "
            f"id {arrival.task_id[:8]}",
        )
        if kwargs["takes"]:
            self.runs_waiting.append((arrival, headers, float(kwargs["takes"])))
        for step in [step for step in self.waiting_faults if step.entry == arrival.entry]:
            self.waiting_faults.remove(step)
            self._begin_fault(step)

    def _worker(self) -> None:
        """Run the tasks of all messages in parallel, each for its entry's run time."""
        app = self.app_of("worker")
        under_way: list[tuple[float, Arrival, dict[str, Any]]] = []
        while True:
            self.world.sleep(0.1)
            for arrival, headers, takes in self.runs_waiting:
                under_way.append((self.seconds + takes, arrival, headers))
                self.record.runs.append(
                    (arrival.entry, arrival.task_id, self.seconds, self.seconds + takes)
                )
            self.runs_waiting.clear()
            for run in [run for run in under_way if run[0] <= self.seconds]:
                under_way.remove(run)
                end_run(app, run[1].task_id, run[2])

    # -- faults ----------------------------------------------------------------------------------

    def _strike(self, step: Step) -> None:
        if step.entry:
            self.waiting_faults.append(step)
        else:
            self._begin_fault(step)

    def _begin_fault(self, step: Step) -> None:
        if step.what in STEP_FAULTS:
            self.beats[step.who].arm(
                Fault(step.what, step.step, step.seconds, step.fields.get("looks", True))
            )
            return
        self.world.note(step.who, f"fault: {step.what} {step.seconds:g} s")
        # The clock of a host changes at once; ``seconds`` is then the size of the change.
        lasts = 0.0 if step.what in CLOCK_FAULTS else step.seconds
        # The last request to a slow server is carried out after the server became fast again.
        self._disturbed(step.what, lasts + step.fields.get("delay", 0.0))
        self.world.struck[step.what] += 1
        if step.what == "stop":
            self.down_for[step.who] = step.seconds
            self.beat_services[step.who].stop()
        elif step.what == "legacy":
            self._start_legacy(step)
        elif step.what == "deploy":
            self._deploy(step)
        elif step.what == "host clock":
            self.hosts[step.who].offset += int(step.seconds * SECOND)
        elif step.what == "host drift":
            drift = int(step.seconds * DRIFT)
            self.hosts[step.who].drift_from(self.world.now, drift)
            drifts = self.record.drifts.setdefault(step.who, [])
            drifts.append((self.seconds, drift / SECOND))
        else:
            SERVER_FAULTS[step.what](self, step, self.services[step.who])

    def _struck(self, fault: Fault) -> None:
        self._disturbed(fault.kind, fault.seconds)
        if self.world.current is not None:
            hit = self.record.hit.setdefault(self.world.current.name, [])
            hit.append((self.seconds, self.seconds + fault.seconds))

    def _disturbed(self, what: str, seconds: float) -> None:
        self.record.disturbances.append((self.seconds, self.seconds + seconds, what))

    def _disarm(self) -> None:
        """Cancel all faults that have not happened, so that everything recovers."""
        self.waiting_faults.clear()
        for process in self.world.processes:
            process.faults.clear()

    def _look_at_lock(self) -> None:
        """Record which beat holds the lock: the token in the lock contains its host."""
        token = self.services["redis"].engine.client.get("redbeat::lock")
        parts = token.decode().split(":") if token else []
        holders = self.record.holders
        if len(parts) > 1 and (not holders or holders[-1][1] != parts[1]):
            holders.append((self.seconds, parts[1]))
        self.after(1, self._look_at_lock)

    def _take_snapshot(self, step: Step) -> None:
        self.snapshots[step] = self.seconds, self.services[step.who].engine.snapshot()


def envelope_body(envelope: dict[str, Any]) -> str:
    """Return the JSON text in a kombu message."""
    return base64.b64decode(envelope["body"]).decode()
