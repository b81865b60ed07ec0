"""Writes users' programs and runs them, as scheduler objects or under a real beat.

This module imports only names that ``celery-redbeat`` 2.4.2 has.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import redis
from celery import _state, beat, signals

import redbeat.schedulers
from tests.waiting import wait_until

__all__ = ("TASK", "Message", "Program", "Run", "Running", "Wild", "restored")

ROOT: Final = Path(__file__).resolve().parents[2]
#: The default task of the entries.
TASK: Final = "jobs.run"
#: Timeouts in seconds for a scheduler object and for a beat process, which takes longer to start.
#: Some tests wait 5 seconds, after which a deleted entry leaves the schedule.
OBJECT_SECONDS: Final = 12.0
BEAT_SECONDS: Final = 20.0
STOP_SECONDS: Final = 10.0
HOUR: Final = 3600

#: The beginning of every program. A beat of the program uses the class `Scheduler`.
PREAMBLE: Final = """\
import json

import redis
from celery import Celery

from redbeat import RedBeatScheduler, RedBeatSchedulerEntry

URL = {url!r}
app = Celery({name!r}, broker={broker!r})
app.conf.update({settings!r})
Scheduler = RedBeatScheduler


def save(name, schedule=0.5, entry=RedBeatSchedulerEntry, **more):
    made = entry(name=name, task="jobs.run", schedule=schedule, app=app, **more)
    made.last_run_at = None  # the known idiom for an entry that is due at once
    return made.save()


"""

_numbers = itertools.count()


@dataclass(frozen=True)
class Message:
    """A message in the queue of the broker."""

    task: str
    id: str
    args: list[Any]
    kwargs: dict[str, Any]
    headers: dict[str, Any]

    @classmethod
    def parse(cls, text: str) -> Message:
        """Return the message for a JSON string that kombu stored in a Redis list."""
        envelope = json.loads(text)
        args, kwargs, _embed = json.loads(base64.b64decode(envelope["body"]))
        headers = envelope["headers"]
        return cls(headers["task"], headers["id"], args, kwargs, headers)


@dataclass
class Program:
    """The file of a program, which this process can also import."""

    path: Path
    settings: dict[str, Any]

    @property
    def name(self) -> str:
        """The name of the program's module."""
        return self.path.stem

    @cached_property
    def module(self) -> Any:
        """The imported module; it is imported at the first access."""
        module = sys.modules[self.name] = types.ModuleType(self.name)
        exec(compile(self.path.read_text(), str(self.path), "exec"), vars(module))
        return module

    @property
    def app(self) -> Any:
        """The Celery app of the imported module."""
        return self.module.app

    def forget(self) -> None:
        """Close the connections of the imported module."""
        module = sys.modules.pop(self.name, None)
        if module is not None:
            app: Any = vars(module)["app"]
            client: Any = getattr(app, "redbeat_redis", None)
            if client is not None:
                client.close()
            app.close()


class Running:
    """A running program."""

    #: The scheduler object, or None for a beat process.
    scheduler: Any = None

    def until(self, condition: Callable[[], Any], message: str = "") -> Any:
        """Let the program run until the condition is true; return the result of the condition."""
        raise NotImplementedError

    def log(self) -> str:
        """Return the output of the beat process."""
        return ""


class ObjectRunning(Running):
    """A scheduler object in this process; `until` calls its `tick`."""

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler

    def until(self, condition: Callable[[], Any], message: str = "") -> Any:
        """Tick until the condition is true; return the result of the condition."""

        def ticked() -> Any:
            result = condition()
            if not result:
                self.scheduler.tick()
            return result

        return wait_until(ticked, OBJECT_SECONDS, message)


class BeatRunning(Running):
    """A `celery beat` process, started in the directory of its program."""

    def __init__(self, program: Program, *options: str) -> None:
        self._output = program.path.with_suffix(f".{next(_numbers)}.log")
        command = ["-A", program.name, "beat"]
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "celery", *command, "-l", "info", "--pidfile=", *options],
                cwd=program.path.parent,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def log(self) -> str:
        """Return the current output of the beat process."""
        return self._output.read_text(errors="replace")

    def until(self, condition: Callable[[], Any], message: str = "") -> Any:
        """Wait until the condition is true; fail immediately if the beat process ends early."""

        def settled() -> Any:
            ended = self.process.poll() is not None
            result = condition()
            if ended and not result:
                raise AssertionError(f"the beat ended with {self.process.returncode}")
            return result

        try:
            return wait_until(settled, BEAT_SECONDS, message)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log()}") from None

    def stop(self) -> None:
        """Stop the beat process with SIGTERM, and with SIGKILL after a timeout."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


#: A function that runs a program; the fixture `run` returns one.
Run = Callable[..., AbstractContextManager[Running]]


@contextmanager
def run_object(
    program: Program, lead: bool = True, service: bool = False
) -> Iterator[ObjectRunning]:
    """Run the scheduler of a program as an object in this process.

    By default, the scheduler acquires the lock, like a beat; ``lead=False`` disables that. With
    ``service``, the scheduler belongs to a beat service, and the `beat_init` signal is sent.
    """
    scheduler = program.module.Scheduler
    if service:
        made = beat.Service(program.app, scheduler_cls=scheduler)
        scheduler = made.scheduler
        signals.beat_init.send(sender=made)
    else:
        scheduler = scheduler(app=program.app)
        if lead:
            sender = SimpleNamespace(scheduler=scheduler)
            redbeat.schedulers.acquire_distributed_beat_lock(sender=sender)
    try:
        yield ObjectRunning(scheduler)
    finally:
        scheduler.close()


@contextmanager
def run_beat(program: Program, lead: bool = True, service: bool = False) -> Iterator[Running]:
    """Run a program under a real beat, which always has a service and acquires the lock."""
    del lead, service
    with beat_process(program, "-S", f"{program.name}:Scheduler") as running:
        yield running


@contextmanager
def beat_process(program: Program, *options: str) -> Iterator[BeatRunning]:
    """Run a program under a `celery beat` with these options."""
    running = BeatRunning(program, *options)
    try:
        yield running
    finally:
        running.stop()


@dataclass
class Wild:
    """A directory with programs, their Redis (database 0), and their broker (database 1)."""

    directory: Path
    url: str
    _programs: list[Program] = field(default_factory=list)

    @cached_property
    def client(self) -> Any:
        """A client of the schedule's database; it decodes replies to strings."""
        return redis.Redis.from_url(self.url, decode_responses=True)

    @cached_property
    def broker_url(self) -> str:
        """The URL of the broker."""
        return self.url.removesuffix("/0") + "/1"

    @cached_property
    def broker(self) -> Any:
        """A client of the broker's database."""
        return redis.Redis.from_url(self.broker_url, decode_responses=True)

    def program(self, text: str = "", **settings: Any) -> Program:
        """Write the file of a program; its app also gets the default settings of these tests."""
        settings = {
            "redbeat_redis_url": self.url,
            # With 2.4.2, this is the maximum delay in seconds before the beat sees a changed entry.
            "beat_max_loop_interval": 0.25,
            "redbeat_lock_timeout": 5,
            # None keeps Celery from adding an entry that deletes old results.
            "result_expires": None,
            **settings,
        }
        name = f"program_{os.getpid()}_{next(_numbers)}"
        preamble = PREAMBLE.format(
            url=self.url, broker=self.broker_url, name=name, settings=settings
        )
        path = self.directory / f"{name}.py"
        path.write_text(preamble + text)
        program = Program(path, settings)
        self._programs.append(program)
        return program

    def object(self, program: Program, lead: bool = True) -> AbstractContextManager[ObjectRunning]:
        """Run a program as a scheduler object, independently of the fixture `run`."""
        return run_object(program, lead)

    def beat(self, program: Program, *options: str) -> AbstractContextManager[BeatRunning]:
        """Run a program under a real beat, independently of the fixture `run`."""
        return beat_process(program, *options)

    def messages(self, task: str = TASK, queue: str = "celery") -> list[Message]:
        """Return the messages of a task in the queue, the oldest first."""
        found = [Message.parse(text) for text in self.broker.lrange(queue, 0, -1)]
        return [message for message in reversed(found) if message.task == task]

    def definition(self, name: str, prefix: str = "redbeat:") -> dict[str, Any]:
        """Return the stored definition of an entry, as plain JSON."""
        found: dict[str, Any] = json.loads(self.client.hget(prefix + name, "definition"))
        return found

    def meta(self, name: str, prefix: str = "redbeat:") -> dict[str, Any]:
        """Return the stored history of an entry, as plain JSON."""
        found: dict[str, Any] = json.loads(self.client.hget(prefix + name, "meta") or "{}")
        return found

    def runs(self, name: str, prefix: str = "redbeat:") -> int:
        """Return the number of recorded runs of an entry."""
        count: int = self.meta(name, prefix).get("total_run_count", 0)
        return count

    def score(self, name: str, prefix: str = "redbeat:") -> float | None:
        """Return the score of an entry, or None if the entry is not in the schedule."""
        found: float | None = self.client.zscore(f"{prefix}:schedule", prefix + name)
        return found

    def overdue(self, name: str, schedule: dict[str, Any] | None = None) -> None:
        """Store an entry as 2.4.2 does, with a last run two hours ago."""
        ran = time.gmtime(time.time() - 2 * HOUR)
        fields = ("year", "month", "day", "hour", "minute", "second")
        at = {"__type__": "datetime", **dict(zip(fields, ran, strict=False))}
        definition = {
            "name": name,
            "task": TASK,
            "args": None,
            "kwargs": {},
            "options": {},
            "schedule": schedule or {"__type__": "interval", "every": HOUR, "relative": False},
            "enabled": True,
        }
        history = {"last_run_at": {**at, "microsecond": 0, "timezone": "UTC"}, "total_run_count": 7}
        stored = {"definition": json.dumps(definition), "meta": json.dumps(history)}
        self.client.hset(f"redbeat:{name}", mapping=stored)
        self.client.zadd("redbeat::schedule", {f"redbeat:{name}": time.time() - HOUR})

    def close(self) -> None:
        """Close the connections of all imported programs, and the clients."""
        for program in self._programs:
            program.forget()
        self.client.close()
        self.broker.close()


@contextmanager
def restored() -> Iterator[None]:
    """Undo, at the end, what programs changed in the package and in Celery in this process."""
    state: Any = _state
    owners: list[Any] = [redbeat.schedulers]
    owners += [redbeat.schedulers.RedBeatScheduler, redbeat.schedulers.RedBeatSchedulerEntry]
    before = [dict(vars(owner)) for owner in owners]
    hooked = [signals.beat_init, signals.before_task_publish, signals.after_task_publish]
    receivers = [list(one.receivers) for one in hooked]
    current, default = state._tls.current_app, state.default_app  # noqa: SLF001 - Celery's
    yield
    for owner, names in zip(owners, before, strict=True):
        _restore(owner, names)
    for one, were in zip(hooked, receivers, strict=True):
        one.receivers = were
        if one.use_caching:
            one.sender_receivers_cache.clear()
    state._tls.current_app, state.default_app = current, default  # noqa: SLF001 - Celery's


def _restore(owner: Any, names: dict[str, Any]) -> None:
    for name, value in list(vars(owner).items()):
        if name not in names:
            delattr(owner, name)
        elif value is not names[name]:
            setattr(owner, name, names[name])
