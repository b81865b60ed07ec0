"""Each alert rule fires on what a real beat or exporter serves in the situation that it is for."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kombu.exceptions import OperationalError
from prometheus_client import CollectorRegistry, generate_latest
from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from redbeat.beat.beat import Beat
from redbeat.beat.lock import new_token
from redbeat.config import ensure_conf
from redbeat.entries.state import Results, State
from redbeat.metrics.prometheus import RedisCollector
from redbeat.metrics.snapshot import take_snapshot
from redbeat.storage.store import Store, store_of
from redbeat.storage.words import PAUSED_FOR_FAILURES
from tests.deployments import PREFIX
from tests.metrics.promql import Scrapes, evaluate
from tests.metrics.scrapes import Scrape, Target
from tests.scheduler.conftest import LOCK, SCHEDULE, Clock, RecordingScheduler, World, interval_json
from tests.test_deploy_files import ALERTS, check, rules, tool

#: Seconds by which an entry is late in a situation with lateness.
LATE = 100


@pytest.fixture(autouse=True)
def memory(world: World) -> Iterator[None]:
    """Give the server its memory back after the test."""
    yield
    world.client.config_set("maxmemory", 0)
    world.client.config_set("maxmemory-policy", "noeviction")


class Situation:
    """A schedule with or without a beat; ``minute`` is what happens between two scrapes."""

    def __init__(self, world: World, port: int) -> None:
        self.world = world
        self.clock = Clock()
        self.port = port
        self.target = Target(port)
        self.beat: RecordingScheduler | None = None
        self.minute: Callable[[], Any] = self.tick
        self.scrape: Callable[[], Scrape] = self.target.scrape

    def start(self) -> RecordingScheduler:
        """Start a beat that serves metrics, and let it do the first tick."""
        self.world.app.conf.redbeat_metrics_port = self.port
        self.beat = self.world.scheduler(clock=self.clock)
        self.beat.tick()
        return self.beat

    def tick(self) -> None:
        """Let the beat send what is due."""
        if self.beat is not None:
            self.beat.tick()

    def export(self, **options: Any) -> None:
        """Scrape an exporter from now on; ``options`` are arguments of ``take_snapshot``."""
        store, conf = options.pop("store", None), ensure_conf(self.world.app)
        store = store or store_of(self.world.app)
        collector = RedisCollector(lambda: take_snapshot(store, conf, **options), 200)

        def scrape() -> Scrape:
            registry = CollectorRegistry()
            registry.register(collector)
            return Scrape(generate_latest(registry).decode())

        self.scrape = scrape

    def put_late(self, name: str) -> None:
        """Store an entry whose first run has been due for :data:`LATE` seconds."""
        self.world.put(name, interval_json(3600), score=self.world.now() - LATE)

    def scrapes(self) -> Scrapes:
        """Return the samples before and after a minute."""
        self.minute()
        first = self.scrape()
        self.minute()
        return Scrapes.of(first.samples, self.scrape().samples)


def well(it: Situation) -> None:
    """A beat that sends a run each minute, on time."""
    it.start()
    it.world.put("other", interval_json(3600), it.world.ago(5), score=it.world.now() + 3595)

    def minute() -> None:
        it.world.client.delete(f"{PREFIX}a")
        it.world.put("a")
        it.tick()

    it.minute = minute


def broker_away(it: Situation) -> None:
    """A beat that cannot reach its broker."""

    def refuse(_task: str) -> None:
        raise OperationalError("refused")

    it.start().before_send = refuse
    it.put_late("a")

    def minute() -> None:
        it.tick()
        it.world.client.zadd(SCHEDULE, {f"{PREFIX}a": it.world.now()})

    it.minute = minute


def failing_entry(it: Situation) -> None:
    """A beat that sends all entries but one, whose runs cannot be sent."""
    well(it)
    it.put_late("bad")

    def refuse(task: str) -> None:
        if task == "tasks.bad":
            raise TypeError("not JSON")

    assert it.beat is not None
    it.beat.before_send = refuse
    send = it.minute

    def minute() -> None:
        send()
        it.world.client.zadd(SCHEDULE, {f"{PREFIX}bad": it.world.now()})

    it.minute = minute


def overloaded(it: Situation) -> None:
    """A beat that sends its runs late."""
    it.start()

    def minute() -> None:
        it.world.client.delete(f"{PREFIX}a")
        it.put_late("a")
        it.tick()

    it.minute = minute


def no_beat(it: Situation) -> None:
    """An exporter of a schedule on which no beat works."""
    it.export()


def redbeat_2_leads(it: Situation) -> None:
    """An exporter under a beat of RedBeat 2, which keeps disabled entries in the past."""
    it.start().close()
    it.world.client.set(LOCK, "d2f1", ex=60)
    it.world.put("off", score=it.world.now() - LATE, enabled=False)
    it.world.client.hset(f".{PREFIX}:stats", mapping={"last_tick": 1, "problem": "old"})
    it.export()


def not_a_lock(it: Situation) -> None:
    """An exporter of a schedule whose lock key belongs to another program."""
    it.world.client.hset(LOCK, "a", "b")
    it.export()


def redis_away(it: Situation) -> None:
    """An exporter whose Redis is down."""
    store = store_of(it.world.app)
    it.export(store=Store(Redis(port=it.port, retry=Retry(NoBackoff(), 0)), store.keys))


def hanging(it: Situation) -> None:
    """A beat whose last tick was long ago."""
    it.start()
    it.minute = lambda: it.clock.advance(61)


def unreadable(it: Situation) -> None:
    """An entry in quarantine."""
    it.start()
    it.world.put("a")
    it.world.client.hset(f"{PREFIX}a", "definition", "{")


def missed(it: Situation) -> None:
    """An entry whose runs are too late to catch up."""
    it.start()

    def minute() -> None:
        it.world.put("a", last_run_at=it.world.ago(3 * 3600 + 1800), schedule=interval_json(3600))
        it.world.client.hset(f"{PREFIX}a", "policy", json.dumps({"misfire_grace_time": 60}))
        it.world.client.hdel(f"{PREFIX}a", "runtime")
        it.tick()

    it.minute = minute


def no_success(it: Situation) -> None:
    """An entry without a success within the time in which one is expected."""
    it.start()
    it.world.put("a", interval_json(3600), it.world.ago(7200), score=it.world.now() + 3600)
    policy = {"expect_within": 3600}
    it.world.client.hset(f"{PREFIX}a", "policy", json.dumps(policy))
    it.world.client.hset(f".{PREFIX}:stats", "reports_since", it.world.now() - 7200)
    it.world.client.zadd(f".{PREFIX}:expected", {f"{PREFIX}a": 1})


def clock_off(it: Situation) -> None:
    """A host whose clock is ahead."""
    it.start()
    it.export(clock=lambda: time.time() + 5)


def failing_tasks(it: Situation, failures: int = 3) -> None:
    """An entry whose tasks fail, as a worker reports."""
    well(it)
    it.world.put("b", interval_json(3600), score=it.world.now() + 3600)
    failed = State(identity="b", results=Results(None, 3, 1.0, ()))
    it.world.client.hset(f"{PREFIX}b", "beat_state", failed.text())
    it.world.client.zadd(f".{PREFIX}:failed", {f"{PREFIX}b": failures})


def paused_for_failures(it: Situation) -> None:
    """An entry that was paused because its tasks failed."""
    failing_tasks(it, PAUSED_FOR_FAILURES)


def full(it: Situation) -> None:
    """An exporter whose Redis takes no more writes."""
    it.start().close()
    it.world.client.config_set("maxmemory", 1)
    it.export()


def full_under_a_beat(it: Situation) -> None:
    """A beat whose Redis takes no more writes while an entry is due."""
    it.start()
    it.put_late("a")
    it.world.client.config_set("maxmemory", 1)


def broken_tick(it: Situation) -> None:
    """A beat whose ticks fail in the code of a program."""

    class Odd:
        broken = False

        def extend(self, *_: Any, **__: Any) -> None:
            if self.broken:
                raise ValueError("out of order")

        def release(self) -> None:
            pass

    it.start().lock = lock = Odd()
    it.tick()
    lock.broken = True


def eviction(it: Situation) -> None:
    """A Redis that may evict entries."""
    it.start()
    it.world.client.config_set("maxmemory", 1 << 30)
    it.world.client.config_set("maxmemory-policy", "allkeys-lru")


def growing_queue(it: Situation) -> None:
    """Workers have reported an end, but do not any more, while a beat sends a run each minute."""
    well(it)
    assert it.beat is not None
    assert isinstance(it.beat.beat, Beat)
    it.beat.beat.counters.ended({"id": "succeeded"})


def dead_leader(it: Situation) -> None:
    """An exporter of a schedule whose only beat was killed, and whose lock has not expired."""
    seen = it.world.now() - LATE
    token = f"redbeat3:web-1:4711:{int(seen) - 60}:{'0' * 32}"
    it.world.client.set(LOCK, token, px=60_000)
    it.world.client.zadd(f".{PREFIX}:beats", {f"{token} lock": seen})
    it.world.client.hset(f".{PREFIX}:stats", "last_tick", seen)
    it.export()


def dead_beats(it: Situation) -> None:
    """A schedule whose beats are scraped, and then are gone, while another schedule is scraped."""
    it.start()
    scraped = it.scrape
    taken: list[Scrape] = []

    def scrape() -> Scrape:
        taken.append(scraped() if not taken else Scrape('redbeat_build_info{job="other"} 1\n'))
        return taken[-1]

    it.scrape = scrape


#: Fires for each beat without a standby, as most situations have.
FEW = "RedBeatFewBeats"

#: What fires in each situation.
FIRES: dict[Callable[[Situation], None], set[str]] = {
    well: set(),
    redbeat_2_leads: set(),
    broker_away: {
        *("RedBeatBrokerAway", "RedBeatFailingEntries", "RedBeatLate"),
        *("RedBeatNothingDispatched", "RedBeatPublishingFails"),
    },
    failing_entry: {"RedBeatFailingEntries", "RedBeatLate", "RedBeatPublishingFails"},
    overloaded: {"RedBeatDispatchesLate"},
    failing_tasks: {"RedBeatTasksFail"},
    paused_for_failures: {"RedBeatTasksFail"},
    growing_queue: {"RedBeatRunsPileUp"},
    full: {"RedBeatRedisReadOnly"},
    full_under_a_beat: {"RedBeatLate", "RedBeatNothingDispatched", "RedBeatRedisReadOnly"},
    broken_tick: {"RedBeatProblem"},
    eviction: {"RedBeatRisk"},
    no_beat: {"RedBeatNoLeader"},
    dead_leader: {"RedBeatNoLeader"},
    dead_beats: {"RedBeatGone"},
    not_a_lock: {"RedBeatNoLeader"},
    redis_away: {"RedBeatRedisAway"},
    hanging: {"RedBeatHangs"},
    unreadable: {"RedBeatQuarantine"},
    missed: {"RedBeatMissedRuns"},
    no_success: {"RedBeatNoSuccess"},
    clock_off: {"RedBeatClockOff"},
}


def test_a_situation_for_every_alert() -> None:
    fires = set().union(*FIRES.values()) | {"RedBeatNotScraped", FEW}
    assert fires == {rule["alert"] for rule in rules()}


def fired(scrapes: Scrapes) -> set[str]:
    """Return the alerts that fire, by our own reader of the rules."""
    return {rule["alert"] for rule in rules() if evaluate(str(rule["expr"]), scrapes)}


def test_without_a_scrape() -> None:
    assert fired(Scrapes({}, {})) == {"RedBeatNotScraped"}


@pytest.mark.parametrize("situation", FIRES, ids=lambda situation: situation.__name__)
def test_alerts_fire_in_real_situations(
    world: World, unused_port: int, situation: Callable[[Situation], None]
) -> None:
    it = Situation(world, unused_port)
    situation(it)
    assert fired(it.scrapes()) - {FEW} == FIRES[situation]


def test_a_beat_without_a_standby(world: World, unused_port: int) -> None:
    it = Situation(world, unused_port)
    it.start()
    assert FEW in fired(it.scrapes())
    world.client.zadd(f".{PREFIX}:beats", {f"{new_token()} lock": world.now()})
    assert FEW not in fired(it.scrapes())


def series_of(scrapes: Scrapes) -> list[dict[str, str]]:
    """Return the samples as time series of promtool, with one value a minute."""
    series = []
    for name, vector in scrapes.first.items():
        gone = vector.keys() - scrapes.second.get(name, {}).keys()
        series += [{"series": series_name(name, labels), "values": "1x3 stale"} for labels in gone]
    for name, vector in scrapes.second.items():
        for labels, value in vector.items():
            start = scrapes.first.get(name, {}).get(labels, value)
            grows = name.endswith(("_total", "_bucket", "_sum", "_count"))
            values = f"0 {start!r}+{max(value - start, 0.0)!r}x60" if grows else f"{value!r}x60"
            series.append({"series": series_name(name, labels), "values": values})
    return series


def series_name(name: str, labels: frozenset[tuple[str, str]]) -> str:
    """Return the name of a time series of promtool, with a job."""
    found = {"job": "redbeat", **dict(labels)}
    text = ",".join(f"{label}={json.dumps(text)}" for label, text in sorted(found.items()))
    return f"{name}{{{text}}}"


@pytest.mark.long
@pytest.mark.parametrize("situation", FIRES, ids=lambda situation: situation.__name__)
def test_prometheus_agrees(
    world: World, unused_port: int, tmp_path: Path, situation: Callable[[Situation], None]
) -> None:
    """The real rule engine fires the same alerts on the same scrapes."""
    program = tool("promtool")
    it = Situation(world, unused_port)
    situation(it)
    scrapes = it.scrapes()
    expected = FIRES[situation] | (fired(scrapes) & {FEW})
    alerts = [{"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in sorted(expected)]
    firing = 'count by (alertname) (ALERTS{alertstate="firing"})'
    asked = [{"expr": firing, "eval_time": "50m", "exp_samples": alerts}]
    tests = tmp_path / "tests.json"
    group = {"interval": "1m", "input_series": series_of(scrapes), "promql_expr_test": asked}
    tests.write_text(json.dumps({"rule_files": [str(ALERTS)], "tests": [group]}))
    assert "SUCCESS" in check(program, "test", "rules", tests)


def test_the_reader_refuses_what_it_does_not_know() -> None:
    for text in ("topk(3, a)", "a % b", "max by (job) (a) >> 1", "a or b"):
        with pytest.raises(AssertionError):
            evaluate(text, Scrapes({}, {"a": {frozenset(): 1.0}}))
