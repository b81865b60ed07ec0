"""Carries out a scenario: beats, applications, workers and faults; writes down what happened."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any, Final

import celery.beat
from celery import Celery, signals
from celery.schedules import crontab
from redis.exceptions import ReadOnlyError

import redbeat.worker
from redbeat import RedBeatScheduler, RedBeatSchedulerEntry, clocked, rrule
from tests.simulation import clocks
from tests.simulation.clocks import SECOND, Host
from tests.simulation.engine import Engine
from tests.simulation.network import Network, Service
from tests.simulation.record import Action, Arrival, Record
from tests.simulation.scenario import STEP_FAULTS, Scenario, Step
from tests.simulation.world import Fault, Order, Process, World

__all__ = ("Simulation", "simulate")

QUEUE: Final = "celery"
#: Seconds after which a beat that ended is started again.
RESTART: Final = 2.0


def simulate(scenario: Scenario, engines: dict[str, Engine]) -> Record:
    """Carry out a scenario on servers that are emptied first."""
    return Simulation(scenario, engines).run()


class Simulation:
    """One scenario under way."""

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
        self.network = Network(self.world, self.services)
        self.hosts: dict[str, Host] = {}
        self.beats: dict[str, Process] = {}
        self.beat_services: dict[str, Any] = {}
        self.runs_waiting: list[tuple[Arrival, dict[str, Any], float]] = []
        self.apps: dict[str, Celery] = {}
        #: The static entries of each beat, and the version that their messages tell.
        self.statics: dict[str, tuple[dict[str, Any], int]] = {}
        self.snapshots: dict[Step, tuple[float, Any]] = {}
        self._version = 0
        if scenario.order:
            since, until, *switches = scenario.order
            self.world.order = Order(
                *(self._true(since), self._true(until), tuple(map(int, switches)))
            )
            self.world.delays = (0, 0)
        self.world.on_strike = self._struck

    def run(self) -> Record:
        """Run to the end; return what could be seen."""
        clocks.use(self.world)
        self.network.install()
        try:
            self._set_up()
            self.world.run(self.world.start + int(self.scenario.duration * SECOND))
        finally:
            clocks.use(None)
        record, world = self.record, self.world
        if world.stuck is not None:
            record.exits.append((self.seconds, world.stuck.name, "it got stuck"))
        record.quarantined = self._quarantined()
        record.stored = self._stored()
        record.points, record.switches = world.points - world.idle, world.switches
        record.orders, record.struck = world.orders, world.struck
        record.trace = world.trace
        return record

    def _quarantined(self) -> list[str]:
        stored = self.services["redis"].engine.client.hgetall(".redbeat::quarantine")
        return [key.decode() for key in stored]

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
    def seconds(self) -> float:
        """The true time, seconds since the beginning."""
        return (self.world.now - self.world.start) / SECOND

    # -- who takes part --------------------------------------------------------------------------

    def _set_up(self) -> None:
        self._at(self.scenario.duration - self.scenario.calm, self._disarm)
        for number in range(self.scenario.beats):
            self._start_beat(f"beat-{number + 1}", number * 0.2)
        by_web: dict[str, list[Step]] = {}
        for step in self.scenario.steps:
            if step.who.startswith("web"):
                by_web.setdefault(step.who, []).append(step)
                continue
            if step.what == "older data":
                self._at(max(step.at - step.fields["age"], 0.0), self._take_snapshot, step)
            self._at(step.at, self._strike, step)
        for name, steps in by_web.items():
            self._start(name, lambda name=name, steps=steps: self._web(name, steps), 0.0)
        if any("takes" in step.fields for step in self.scenario.steps):
            self._start("worker", self._worker, 0.0)

    def _true(self, seconds: float) -> int:
        """Return the true time so many seconds after the beginning."""
        return self.world.start + int(seconds * SECOND)

    def _at(self, seconds: float, action: Callable[..., Any], *args: Any) -> None:
        self.world.at(self._true(seconds), action, *args)

    def _start(self, name: str, main: Callable[[], Any], after: float) -> Process:
        host = self.hosts.setdefault(name, Host(name, since=self.world.now))
        process = self.world.process(name, host, main)
        process.start(self.world.now + int(after * SECOND))
        return process

    def app_of(self, name: str) -> Celery:
        """Return the app of a process, as it makes it when it starts."""
        broker = "broker" if self.scenario.separate_broker else "redis"
        app = Celery(name, broker=f"redis://{broker}:6379/1", set_as_current=False)
        app.conf.update(
            redbeat_redis_url="redis://redis:6379/0",
            redbeat_lock_timeout=self.scenario.lock_timeout,
            timezone="UTC",
            enable_utc=True,
            result_expires=None,
            **self.scenario.settings,
        )
        if not self.scenario.locked:
            app.conf.redbeat_lock_key = None
        if any("takes" in step.fields for step in self.scenario.steps):
            redbeat.worker.enable(app)
        return app

    # -- beats -----------------------------------------------------------------------------------

    def _start_beat(self, name: str, after: float = 0.0) -> None:
        def main() -> None:
            app = self.app_of(name)
            statics, version = self.statics.get(name, (self.scenario.statics, 0))
            app.conf.beat_schedule = {
                entry: self._fields_of(fields, version) for entry, fields in statics.items()
            }
            if self.scenario.embedded:
                self._tick_when_due(RedBeatScheduler(app=app))
            service = celery.beat.Service(app, scheduler_cls=RedBeatScheduler)
            self.beat_services[name] = service
            service.start()

        process = self._start(name, main, after)
        process.on_end = lambda: self._beat_ended(name, process)
        self.beats[name] = process

    def _tick_when_due(self, scheduler: RedBeatScheduler) -> None:
        """Do what a program does that has a beat inside, and looks only when something is due."""
        stored = self.services["redis"].engine.client
        while True:
            seconds = scheduler.tick()
            first = stored.zrangebyscore("redbeat::schedule", 0, "inf", 0, 1, withscores=True)
            due = first[0][1] - self.world.now / SECOND if first else seconds
            self.world.sleep(max(due, seconds if due <= 0 else 0.0))

    def _beat_ended(self, name: str, process: Process) -> None:
        if process.ended_by is not None:
            self.record.exits.append((self.seconds, name, repr(process.ended_by)))
            self.world.note(name, f"exited: {process.ended_by!r}")
        self._at(self.seconds + RESTART, self._start_beat, name)

    # -- applications ----------------------------------------------------------------------------

    def _web(self, name: str, steps: list[Step]) -> None:
        self.apps[name] = self.app_of(name)
        for step in steps:
            self.world.sleep(max(step.at - self.seconds, 0))
            self._act(name, step)

    def _act(self, name: str, step: Step) -> None:
        self._version += 1
        action = Action(step, self._version, self.seconds)
        self.record.actions.append(action)
        try:
            action.result = OPERATIONS[step.what](self, name, step, action)
            action.outcome = "done"
        except KeyError:
            action.outcome = "missing"
        except Exception as error:
            action.outcome = f"failed: {error!r}"
        action.ended = self.seconds
        self.world.note(name, f"{step.what} {step.entry} v{action.version}: {action.outcome}")

    def _fields_of(self, fields: dict[str, Any], version: int) -> dict[str, Any]:
        return {
            "task": "proj.run",
            "schedule": schedule_of(fields, self._now()),
            "kwargs": {"version": version, "takes": fields.get("takes", 0)},
            **{name: fields[name] for name in PASSED_ON if name in fields},
            **{
                f"{name}_time": self._now() + timedelta(seconds=fields[name])
                for name in ("start", "end")
                if name in fields
            },
        }

    def _now(self) -> datetime:
        """The true time; applications say when something is to happen by it."""
        return datetime.fromtimestamp(self.world.now / SECOND, timezone.utc)

    def save(self, name: str, step: Step, action: Action) -> None:
        """Make an entry anew and save it."""
        fields = self._fields_of(step.fields, action.version)
        action.definition = {**step.fields, "made_at": self.seconds}
        entry = RedBeatSchedulerEntry(step.entry, app=self.apps[name], **fields)
        entry.save()

    def edit(self, name: str, step: Step, action: Action) -> None:
        """Load an entry, change its arguments, save it."""
        entry = self._load(name, step)
        entry.kwargs = {**entry.kwargs, "version": action.version}
        entry.save()

    def pause(self, name: str, step: Step, _action: Action) -> None:
        self._load(name, step).pause()

    def resume(self, name: str, step: Step, _action: Action) -> None:
        self._load(name, step).resume()

    def trigger(self, name: str, step: Step, _action: Action) -> str:
        return self._load(name, step).trigger()

    def delete(self, name: str, step: Step, _action: Action) -> None:
        self._load(name, step).delete()

    def _load(self, name: str, step: Step) -> RedBeatSchedulerEntry:
        app = self.apps[name]
        key = RedBeatSchedulerEntry.generate_key(app, step.entry)
        return RedBeatSchedulerEntry.from_key(key, app=app)

    # -- workers ---------------------------------------------------------------------------------

    def _drain(self, sender: str) -> None:
        """Take the messages that arrived."""
        client = self.broker.engine.messages
        clock = self.services["redis"].engine.host.wall(self.world.now) / SECOND
        try:
            texts = client.rpop(QUEUE, 1000) or []
        except ReadOnlyError:
            return  # then nothing arrived
        for text in texts:
            self._arrived(json.loads(text), clock, sender)

    def _arrived(self, envelope: dict[str, Any], clock: float, sender: str) -> None:
        headers = envelope["headers"]
        kwargs = json.loads(envelope_body(envelope))[1]
        arrival = Arrival(
            at=self.seconds,
            clock=clock,
            entry=headers["periodic_task_name"],
            task_id=headers["id"],
            nominal=datetime.fromisoformat(headers["scheduled_at"]).timestamp(),
            version=kwargs["version"],
            triggered=bool(headers.get("triggered")),
            coalesced=int(headers.get("coalesced") or 0),
            sender=sender,
        )
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

    def _worker(self) -> None:
        """Run what was sent, each for as long as its entry says, as many at once as there are."""
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
                task = WorkerTask(app, run[2])
                signals.task_postrun.send(
                    sender=task, task_id=run[1].task_id, task=task, state="SUCCESS", retval=None
                )

    # -- faults ----------------------------------------------------------------------------------

    def _strike(self, step: Step) -> None:
        if step.what in STEP_FAULTS:
            self.beats[step.who].arm(
                Fault(step.what, step.step, step.seconds, step.fields.get("looks", True))
            )
            return
        self.world.note(step.who, f"fault: {step.what} {step.seconds:g} s")
        self._disturbed(step.what, step.seconds)
        self.world.struck[step.what] = self.world.struck.get(step.what, 0) + 1
        if step.what == "stop":
            self._stop_beat(step.who)
        elif step.what == "deploy":
            self._deploy(step.fields["statics"])
        elif step.what == "host clock":
            self.hosts[step.who].offset += int(step.seconds * SECOND)
        elif step.what == "host drift":
            host = self.hosts[step.who]
            host.since, host.drift = self.world.now, int(step.seconds * 100)
        else:
            self._strike_server(step, self.services[step.who])

    def _stop_beat(self, name: str) -> None:
        service = self.beat_services.get(name)
        if service is not None and self.beats[name].alive:
            service.stop()

    def _deploy(self, statics: dict[str, Any]) -> None:
        """Stop the beats, one after the other, and have each start with other static entries."""
        self._version += 1
        for number, name in enumerate(self.beats):
            self._at(self.seconds + number, self._deploy_to, name, statics, self._version)
        end = self.seconds + len(self.beats) + RESTART
        self.record.deploys.append((self.seconds, end, self._version, statics))
        self._disturbed("deploy", end - self.seconds)

    def _deploy_to(self, name: str, statics: dict[str, Any], version: int) -> None:
        self.statics[name] = statics, version
        self._stop_beat(name)

    def _struck(self, fault: Fault) -> None:
        self._disturbed(fault.kind, fault.seconds)
        if self.world.current is not None:
            hit = self.record.hit.setdefault(self.world.current.name, [])
            hit.append((self.seconds, self.seconds + fault.seconds))

    def _disturbed(self, what: str, seconds: float) -> None:
        self.record.disturbances.append((self.seconds, self.seconds + abs(seconds), what))

    def _disarm(self) -> None:
        """Let no more faults strike: from now on everything recovers."""
        for process in self.world.processes:
            process.faults.clear()

    def _strike_server(self, step: Step, service: Service) -> None:
        engine, until = service.engine, self.seconds + step.seconds
        what = step.what
        if what == "stall":
            service.stalled_until = self.world.now + int(step.seconds * SECOND)
        elif what == "memory full":
            engine.fill_memory(True)
            self._at(until, engine.fill_memory, False)
        elif what == "replica":
            engine.make_replica(True)
            self._at(until, engine.make_replica, False)
        elif what == "loading":
            service.answer = LOADING
            service.break_connections()
            self._at(until, self._loaded, service)
        elif what == "scripts forgotten":
            engine.forget_scripts()
        elif what == "lock deleted":
            engine.client.delete("redbeat::lock")
        elif what in {"restart", "older data", "no data"}:
            service.stop()
            if what == "no data":
                engine.client.flushall()
                self.record.rollbacks.append((self.seconds, 0.0))
            elif what == "older data":
                taken_at, stored = self.snapshots[step]
                engine.restore(stored)
                self.record.rollbacks.append((self.seconds, taken_at))
            self._at(until, self._come_back, service)

    def _take_snapshot(self, step: Step) -> None:
        self.snapshots[step] = self.seconds, self.services[step.who].engine.snapshot()

    def _loaded(self, service: Service) -> None:
        service.answer = b""

    def _come_back(self, service: Service) -> None:
        service.engine.forget_scripts()
        service.down = False


class WorkerTask:
    """What a signal of Celery says of the task that ran."""

    def __init__(self, app: Celery, request: dict[str, Any]) -> None:
        self.app, self.request = app, request


LOADING: Final = b"-LOADING Redis is loading the dataset in memory\r\n"

#: Fields of a scenario's entry that are those of an entry.
PASSED_ON: Final = (
    "catch_up_limit",
    "coalesce",
    "delivery",
    "jitter",
    "max_runs",
    "misfire_grace_time",
    "on_finish",
    "overlap",
    "timezone",
)

OPERATIONS: Final[dict[str, Callable[[Simulation, str, Step, Action], Any]]] = {
    "save": Simulation.save,
    "edit": Simulation.edit,
    "pause": Simulation.pause,
    "resume": Simulation.resume,
    "trigger": Simulation.trigger,
    "delete": Simulation.delete,
}


def schedule_of(fields: dict[str, Any], now: datetime) -> Any:
    """Return the schedule that a scenario describes."""
    kind = fields["kind"]
    if kind == "every":
        return timedelta(seconds=fields["seconds"])
    if kind == "crontab":
        names = ("minute", "hour", "day_of_week", "day_of_month", "month_of_year")
        return crontab(**{name: fields[name] for name in names if name in fields})
    if kind == "rrule":
        more = {name: fields[name] for name in ("count",) if name in fields}
        start = now.replace(microsecond=0) + timedelta(seconds=1)
        return rrule(fields["freq"], start, interval=fields["interval"], **more)
    return clocked(now + timedelta(seconds=fields["after"]))


def envelope_body(envelope: dict[str, Any]) -> str:
    """Return the JSON text in a message of kombu."""
    import base64  # noqa: PLC0415

    return base64.b64decode(envelope["body"]).decode()
