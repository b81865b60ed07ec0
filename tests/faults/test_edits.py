"""Entries are edited while a beat continuously publishes them."""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta

import pytest
from celery import Celery
from celery.schedules import schedule as interval

from redbeat import RedBeatSchedulerEntry
from tests.faults.beats import Beats
from tests.faults.conftest import Note
from tests.faults.entries import PREFIX, SCHEDULE, Schedule, names
from tests.faults.ledger import Ledger, Message
from tests.faults.profile import Profile
from tests.faults.proxy import Proxy
from tests.faults.trial import Grid, settle
from tests.servers import RedisServer
from tests.waiting import wait_until

pytestmark = pytest.mark.long

#: Entries that are never edited; they keep the beat busy.
STEADY = names(30)
EDITED = names(14, "x")
#: Delay in seconds of a message to the broker, and of the broker's confirmation.
DELAY = 0.005
FAST, SLOW = 1.0, 86400.0
#: Seconds within which an edit takes effect.
AT_ONCE = 2.0
LONGEST_PAUSE = 0.05

#: Returns the inconsistencies in Redis at one moment: entry keys without a definition or without a
#: sorted set member, and members without a hash.
FAULTY = """
local faulty = {}
for _, key in ipairs(redis.call('KEYS', 'redbeat:[a-z]*')) do
  if redis.call('HEXISTS', key, 'definition') == 0 or not redis.call('ZSCORE', KEYS[1], key) then
    faulty[#faulty + 1] = key
  end
end
for _, key in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  if redis.call('EXISTS', key) == 0 then
    faulty[#faulty + 1] = key
  end
end
return faulty
"""


@pytest.fixture
def app(schedule_redis: RedisServer) -> Iterator[Celery]:
    """Return the app of the program that edits the entries."""
    app = Celery("client", broker="memory://", set_as_current=False)
    app.conf.update(redbeat_redis_url=schedule_redis.url, timezone="UTC", enable_utc=True)
    yield app
    app.close()


@pytest.fixture
def busy(
    beats: Beats, schedule: Schedule, schedule_redis: RedisServer, broker_redis: RedisServer
) -> Iterator[Grid]:
    """Run a beat that is busy nearly all the time; yield the entries that are never edited."""
    with Proxy(broker_redis.port) as proxy:
        proxy.delay(DELAY)
        beats.start(broker_url=proxy.url, schedule_url=schedule_redis.url)
        beats[0].wait_for("beat: Acquired lock")
        yield Grid.begin(schedule, STEADY, 1.0, 2.0)


@dataclass
class Life:
    """An entry from its creation to its deletion; instants are in UNIX seconds.

    Runs before ``began`` belong to an earlier entry of the same name. ``ended`` is None while the
    entry exists. ``counted`` is the run count at its creation. ``quiet`` lists the periods in which
    the entry must not become due, each with its latest beginning and its earliest end.
    """

    began: float
    counted: int = 0
    ended: float | None = None
    quiet: list[tuple[float, float]] = field(default_factory=list)
    quiet_since: float | None = None


class Client:
    """Edits entries through the API and records when; a call returns when its edit is in effect."""

    def __init__(self, app: Celery, chance: random.Random) -> None:
        self.lives: dict[str, list[Life]] = defaultdict(list)
        self.edits = 0
        self._app = app
        self._chance = chance

    @property
    def living(self) -> list[str]:
        """Return the names of the existing entries."""
        return [name for name, lives in self.lives.items() if lives[-1].ended is None]

    def create(self, name: str, every: float = FAST) -> None:
        """Store a new entry that first runs one interval from now."""
        self._begin(name, Life(time.time()))
        self._entry(name, every).save()
        self._note(name, every > FAST)

    def delete(self, name: str) -> None:
        self._wake(name)
        self._loaded(name).delete()
        self.lives[name][-1].ended = time.time()
        self.edits += 1

    def recreate(self, name: str) -> None:
        """Delete an entry and store a new entry with the same name."""
        self.delete(name)
        self.create(name)

    def rename(self, name: str) -> None:
        """Delete an entry, and save its object under an unused name."""
        entry, was_quiet = self._loaded(name), self.lives[name][-1].quiet_since is not None
        self.delete(name)
        entry.name = f"r{len(self.lives)}"
        # The object keeps its history. Its next run may be a run that it missed while it was
        # deleted.
        self._begin(entry.name, Life(0.0, entry.total_run_count))
        entry.save()
        self._note(entry.name, was_quiet)

    def slow_down(self, name: str) -> None:
        """Change an entry to run once a day."""
        self._change(name, SLOW)

    def speed_up(self, name: str) -> None:
        """Change an entry to run every second, counted from its last run."""
        self._change(name, FAST)

    def disable(self, name: str) -> None:
        self._change(name, FAST, enabled=False)

    def _begin(self, name: str, life: Life) -> None:
        self.lives[name].append(life)

    def _note(self, name: str, quiet: bool) -> None:
        """Count an edit, and record from when on an entry must not become due."""
        self.edits += 1
        life = self.lives[name][-1]
        if quiet and life.quiet_since is None:
            life.quiet_since = time.time()

    def _wake(self, name: str) -> None:
        """Record that the entry may become due from now on."""
        life = self.lives[name][-1]
        if life.quiet_since is not None:
            life.quiet.append((life.quiet_since, time.time()))
            life.quiet_since = None

    def _change(self, name: str, every: float, enabled: bool = True) -> None:
        """Edit the stored entry, or save a new object over it; both ways keep the history."""
        quiet = every > FAST or not enabled
        if not quiet:
            self._wake(name)
        if self._chance.random() < 0.5:
            self._entry(name, every, enabled).save()
        else:
            entry = self._loaded(name)
            entry.enabled, entry.schedule = enabled, interval(timedelta(seconds=every))
            entry.save()
        self._note(name, quiet)

    def _entry(self, name: str, every: float, enabled: bool = True) -> RedBeatSchedulerEntry:
        task = f"faults.{name}"
        return RedBeatSchedulerEntry(name, task, every, enabled=enabled, app=self._app)

    def _loaded(self, name: str) -> RedBeatSchedulerEntry:
        return RedBeatSchedulerEntry.from_key(PREFIX + name, app=self._app)


def at(message: Message) -> float:
    """Return the instant that a message is for."""
    return message.scheduled_at or 0.0


def check_lives(lives: list[Life], messages: list[Message]) -> None:
    """Assert that after a deletion only a run in progress is sent, until a recreation."""
    for life, successor in zip(lives, [*lives[1:], None], strict=True):
        if life.ended is None:
            continue
        later = [message for message in messages if message.received > life.ended]
        assert sum(at(message) <= life.ended for message in later) <= 1
        until = float("inf") if successor is None else successor.began
        between = [message for message in later if message.received < until]
        assert len(between) <= 1, (life, between)
        assert all(one.received <= life.ended + AT_ONCE for one in between), (life, between)


def check_quiet(lives: list[Life], messages: list[Message]) -> None:
    """Assert that only a run in progress is sent for a disabled or postponed entry."""
    for life in lives:
        end = (life.quiet_since, float("inf")) if life.quiet_since is not None else None
        for since, until in [*life.quiet, *([end] if end else [])]:
            out = [message for message in messages if since < message.received < until]
            assert len(out) <= 1, (since, until, out)
            assert all(one.received <= since + AT_ONCE for one in out), (since, until, out)


def check(client: Client, beats: Beats, schedule: Schedule, ledger: Ledger) -> None:
    """Stop the beat and compare all edits with all messages."""
    assert beats[0].is_alive
    assert beats.terminate(0) == 0
    sent: dict[str, list[Message]] = defaultdict(list)
    for message in ledger.messages:
        sent[message.entry].append(message)
    for name, lives in client.lives.items():
        check_lives(lives, sent[name])
        check_quiet(lives, sent[name])
    ids = Counter(message.task_id for message in ledger.messages)
    assert [message for message in ledger.messages if ids[message.task_id] > 1] == []
    expected = {
        name: life.counted + sum(at(message) > life.began for message in sent[name])
        for name, (*_, life) in client.lives.items()
        if life.ended is None
    }
    assert schedule.run_counts(expected) == expected
    members = {PREFIX + name for name in (*expected, *STEADY)}
    assert set(schedule.client.zrange(SCHEDULE, 0, -1)) == members
    assert set(schedule.client.keys("redbeat:[a-z]*")) == members
    assert not faulty(schedule)


def faulty(schedule: Schedule) -> list[str]:
    """Return the keys that are inconsistent at this moment."""
    found: list[str] = schedule.client.eval(FAULTY, 1, SCHEDULE)
    return found


def check_steady(ledger: Ledger, one: Grid, until: float) -> str:
    """Assert that the entries that are never edited run as usual, and return the report."""
    expected = set(STEADY)
    report = settle(ledger, [one], until)
    assert not report.lost
    assert report.same_id == report.other_id == 0
    assert not [message for message in report.unknown if message.entry in expected]
    return str(report)


def pause(chance: random.Random) -> None:
    """Wait until a random moment, so that the next fault comes at that moment."""
    time.sleep(chance.uniform(0.0, LONGEST_PAUSE))


def edit(client: Client, chance: random.Random) -> None:
    """Make a random edit to a random entry."""
    living, gone = client.living, [name for name in EDITED if name not in client.living]
    if gone and (len(living) < len(EDITED) // 2 or chance.random() < 0.2):
        client.create(chance.choice(gone))
        return
    edits = (client.slow_down, client.disable, client.delete, client.recreate, client.rename)
    more: tuple[Callable[[str], None], ...] = (client.speed_up,) * 3
    chance.choice((*edits, *more))(chance.choice(living))


def test_random_edits(
    beats: Beats,
    busy: Grid,
    app: Celery,
    schedule: Schedule,
    ledger: Ledger,
    profile: Profile,
    note: Note,
    seed: int,
) -> None:
    """Setup: a beat that is busy nearly all the time, with 30 entries every second and a slow link
    to the broker; about 14 more entries that are edited.

    Fault: hundreds of edits at random moments. An edit changes the interval between a second and a
    day, disables, enables, deletes or renames an entry, or recreates it under the same name.

    Invariant: a deleted entry never becomes due again, and Redis stores no data of it. Every hash
    always has a definition and a sorted set member, and every member has a hash. A disabled or
    postponed entry does not become due. The run count of a recreated entry starts at 0, a renamed
    entry keeps its run count, and every message is counted. No run is sent twice.
    """
    chance = random.Random(f"edits {seed}")
    client = Client(app, chance)
    for number in range(profile.pick(350, 700)):
        edit(client, chance)
        pause(chance)
        if number % 10 == 0:
            assert not faulty(schedule)
    for name in client.living[::2]:
        client.delete(name)
    until = schedule.now() + AT_ONCE
    decision = check_steady(ledger, busy, until)
    sent = sum(message.entry not in STEADY for message in ledger.messages)
    lives = sum(map(len, client.lives.values()))
    note(f"{client.edits} edits, {lives} lives, {sent} runs of edited entries; steady: {decision}")
    check(client, beats, schedule, ledger)


def test_an_edit_takes_effect_at_once(
    beats: Beats,
    busy: Grid,
    app: Celery,
    schedule: Schedule,
    ledger: Ledger,
    profile: Profile,
    note: Note,
) -> None:
    """Setup: a beat that is busy nearly all the time; 14 entries that run once a day.

    Fault: at random moments some entries are changed to run every second. After their runs, these
    entries are disabled or changed back to once a day. This is repeated.

    Invariant: each entry runs within 2 s after the change to every second. After the change back,
    it does not become due, and its run count equals the number of its messages.
    """
    chance = random.Random(7)
    client = Client(app, chance)
    for name in EDITED:
        client.create(name, SLOW)
    delays: list[float] = []
    for _ in range(profile.pick(12, 150)):
        read, edited = len(ledger), {}
        for name in chance.sample(EDITED, 5):
            client.speed_up(name)
            edited[name] = time.time()
            pause(chance)
        delays += first_runs(ledger, read, edited)
        for name in edited:
            chance.choice((client.slow_down, client.disable))(name)
            pause(chance)
    decision = check_steady(ledger, busy, schedule.now() + AT_ONCE)
    note(f"{client.edits} edits, in effect within {max(delays):.2f} s; steady: {decision}")
    assert max(delays) <= AT_ONCE
    check(client, beats, schedule, ledger)


def first_runs(ledger: Ledger, read: int, edited: dict[str, float]) -> list[float]:
    """Wait for a message of each entry after its edit; return the seconds that each took."""
    first: dict[str, float] = {}

    def found() -> bool:
        for message in ledger.since(read):
            if message.received >= edited.get(message.entry, float("inf")):
                first.setdefault(message.entry, message.received)
        return len(first) == len(edited)

    wait_until(found, 30.0, "a run after the edit")
    return [first[name] - edited[name] for name in edited]
