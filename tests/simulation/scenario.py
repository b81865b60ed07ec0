"""A simulation as data: entries, operations and faults, generated from a seed or read from a file.

All instants are seconds since the beginning. A scenario is a list of steps. Each step can be
removed, so that a failing scenario can be shrunk.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final
from zoneinfo import ZoneInfo

from tests.simulation.clock_changes import instants_of_changes

#: Faults at a step of a beat: faults of its process or of its next request.
STEP_FAULTS: Final = {
    "kill": "the process is killed, and started again a few seconds later",
    "freeze": "the process is stopped for some seconds, and goes on",
    "request lost": "the request never arrives, the connection stays open",
    "request delayed": "the request arrives seconds later, whatever the client has done meanwhile",
    "request reset": "the request arrives, and the connection breaks before the reply",
    "reset before": "the connection breaks before the request arrives",
    "reply lost": "the request is carried out, its reply never arrives",
    "reply delayed": "the request is carried out, its reply arrives seconds later",
}

#: Faults of a server that last some seconds.
SERVER_FAULTS: Final = {
    "restart": "it is away, and comes back with all its data and no scripts",
    "stall": "it answers nobody",
    "slow": "it carries out each request ``delay`` seconds late",
    "memory full": "it refuses writes that need memory",
    "replica": "it refuses all writes, as after a failover behind the same address",
    "loading": "it answers that it is loading its data",
    "scripts forgotten": "its script cache is emptied",
    "older data": "it is away, and comes back with what it had some seconds before",
    "no data": "it is away, and comes back empty",
    "demoted": "open connections lead to what is a replica now, new ones to the new master",
    "server clock": "its wall clock jumps by ``jump`` seconds, and back",
    "lock deleted": "the key of the lock is deleted",
    "set lost": "the key of the set of due times is deleted",
}

#: Faults of servers that a broker does not have.
OF_SCHEDULE: Final = frozenset(
    ("older data", "no data", "server clock", "lock deleted", "set lost")
)

#: Faults of clocks; ``seconds`` is the size of the jump, or the gain in 10,000 seconds.
CLOCK_FAULTS: Final = {
    "host clock": "the wall clock of one host jumps",
    "host drift": "the clock of one host runs too fast or too slow from then on",
}


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """An event at the time ``at``, in seconds since the beginning.

    ``what`` is an operation of an application (``save``, ``edit``, ``pause``, ...), a fault, or
    ``stop`` or ``deploy`` of a beat. ``who`` is the affected process or server, and ``entry`` is
    the name of an entry. The meaning of the other fields depends on ``what``. A fault with an entry
    waits until a message of this entry arrives, and counts its steps from this message.
    """

    at: float
    what: str
    who: str
    entry: str = ""
    step: int = 1
    seconds: float = 0.0
    fields: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        words = [f"{self.at:10.3f} s  {self.who}: {self.what}"]
        if self.entry:
            words.append(self.entry)
        if self.what in STEP_FAULTS:
            words.append(f"at step {self.step}")
        if self.seconds:
            words.append(f"for {self.seconds:g} s")
        if self.fields:
            words.append(json.dumps(self.fields, default=str))
        return " ".join(words)


@dataclass(frozen=True, slots=True)
class Scenario:
    """The description of a simulation.

    Attributes:
        seed: determines the network delays.
        beats: number of beats; their names are ``beat-1`` and so on.
        locked: whether there is a beat lock, and so one leader and standbys.
        separate_broker: whether broker and schedule have different servers.
        duration: seconds until the end; the last part has no faults, see :attr:`calm`.
        calm: seconds at the end within which everything must recover.
        lock_timeout: lock timeout of the beats in seconds.
        settings: more settings of all apps.
        statics: ``beat_schedule`` of the beats.
        beats_from: seconds after which the beats start.
        beat_settings: settings of single beats, by beat name.
        recovery: seconds after the end of a fault within which everything works again; 0 computes
            this time from the lock timeout.
        leader: the beat that must keep the lock from beginning to end, if any.
        steps: the events.
        story: setup, fault and invariant of a stored scenario, in words.
        expected: a part of the oracle's report for a known defect; empty for a correct scenario.
    """

    seed: int
    beats: int = 2
    locked: bool = True
    separate_broker: bool = False
    duration: float = 120.0
    calm: float = 60.0
    lock_timeout: float = 10.0
    start: float = 1_893_456_000.0
    settings: dict[str, Any] = field(default_factory=dict)
    statics: dict[str, Any] = field(default_factory=dict)
    beats_from: float = 0.0
    beat_settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    recovery: float = 0.0
    leader: str = ""
    steps: tuple[Step, ...] = ()
    #: Whether a beat is embedded in a program that ticks only when an entry is due.
    embedded: bool = False
    #: A fixed order instead of a random order: the period in which steps are counted, in seconds,
    #: and the numbers of the steps before which another beat continues.
    order: tuple[float, ...] = ()
    #: Name of the profile that generated the scenario.
    profile: str = ""
    story: str = ""
    expected: str = ""

    def to_json(self) -> str:
        """Return the scenario as JSON, which :meth:`from_json` reads."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Scenario:
        """Return the scenario from its JSON form."""
        values = json.loads(text)
        values["steps"] = tuple(Step(**step) for step in values["steps"])
        return cls(**values)

    def __str__(self) -> str:
        mode = "one leader" if self.locked else "no lock"
        broker = "separate broker" if self.separate_broker else "one Redis"
        head = (
            f"seed {self.seed} ({self.profile}): {self.beats} beats, {mode}, {broker}, "
            f"{self.duration:g} s, lock timeout {self.lock_timeout:g} s"
        )
        statics = [f"    static {name}: {fields}" for name, fields in self.statics.items()]
        return "\n".join([head, *statics, *(f"  {step}" for step in self.steps)])


Chance = random.Random
#: A function that returns random fields for a new entry.
Kind = Callable[[Chance], dict[str, Any]]

FIELDS_OF_CRONTAB: Final = frozenset(("kind", "hour", "minute", "timezone"))
ZONES: Final = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe")


def _kind(base: Kind | None = None, **fields: Any) -> Kind:
    """Return a kind of entry with these fields, over those of ``base``; a tuple is a choice."""

    def kind(chance: Chance) -> dict[str, Any]:
        made = base(chance) if base else {}
        for name, value in fields.items():
            made[name] = chance.choice(value) if isinstance(value, tuple) else value
        return made

    return kind


_every = _kind(kind="every", seconds=(1, 2, 3, 5, 7.5, 11, 20, 45))
_often = _kind(kind="every", seconds=(0.5, 1, 2))
_crontab = _kind(kind="crontab", minute=("*", "*/2", "1-59/2"), timezone=ZONES)
_rule = _kind(kind="rrule", freq="SECONDLY", interval=(2, 5, 9, 30))
_counted_rule = _kind(_rule, count=(1, 3, 8))
_jitter = _kind(_every, seconds=20, jitter=(1, 4))
_misfire = _kind(_every, misfire_grace_time=(2, 10, 40))
_at_most_once = _kind(_every, delivery="at_most_once")
_often_at_most_once = _kind(_often, delivery="at_most_once")
_all_missed = _kind(_every, coalesce="all", catch_up_limit=100)
_few_missed = _kind(_every, seconds=(1, 2, 3), coalesce="all", catch_up_limit=(1, 3))
_earliest = _kind(_every, coalesce="earliest")
_limited = _kind(_every, max_runs=(1, 2, 5), on_finish=("keep", "disable", "delete"))
_one_off = _kind(kind="every", seconds=(2, 5), max_runs=1)
_overlap = _kind(kind="every", seconds=(2, 5), overlap=("skip", "buffer_one"), takes=(0.5, 4, 12))


def _rule_of_minutes(chance: Chance) -> dict[str, Any]:
    rules: tuple[dict[str, Any], ...] = (
        {},
        {"bysecond": [0, 20, 45]},
        {"bysecond": [7]},
        {"bysecond": [0, 1, 2, 3, 30]},
    )
    fields = {"kind": "rrule", "freq": "MINUTELY", "interval": chance.choice((1, 2))}
    return {**fields, **chance.choice(rules)}


def _rule_near_change(chance: Chance, zone: str, change: float) -> dict[str, Any]:
    """Return a rule with times that a clock change of a zone skips, repeats or follows."""
    crontab = _near_change(chance, zone, change)
    policy = {name: crontab[name] for name in crontab.keys() - FIELDS_OF_CRONTAB}
    minutes = {"byminute": [chance.choice((0, 1, 15, 30, 45, 58))], "bysecond": [0], "zone": zone}
    if isinstance(crontab["hour"], int):
        times = {"freq": "DAILY", "byhour": [crontab["hour"]], **minutes}
    else:
        times = {"freq": "HOURLY", **minutes}
    return {"kind": "rrule", "interval": 1, **times, **policy}


def _once(chance: Chance) -> dict[str, Any]:
    return {"kind": "clocked", "after": round(chance.uniform(1, 60), 3)}


def _window(chance: Chance) -> dict[str, Any]:
    start = round(chance.uniform(-40, 40), 3)
    return {**_every(chance), "start": start, "end": start + round(chance.uniform(5, 60), 3)}


def _near_change(chance: Chance, zone: str, change: float) -> dict[str, Any]:
    """Return a crontab with times that a clock change of a zone skips, repeats or follows."""
    before, after = (datetime.fromtimestamp(at, ZoneInfo(zone)) for at in (change - 1, change))
    skipped = before + timedelta(minutes=31)  # the same zone, so this is wall-clock arithmetic
    hours: list[int | str] = [before.hour, skipped.hour, after.hour]
    return {
        "kind": "crontab",
        "hour": chance.choice([*hours, *hours, "*", "*/2"]),
        "minute": chance.choice((0, 1, 2, 5, 30, 31, 45, 57, 58, 59, "*/2", "*/30", "*")),
        "timezone": zone,
        **chance.choice(
            (
                *({}, {}, {"coalesce": "all", "catch_up_limit": 100}),
                *({"delivery": "at_most_once"}, {"misfire_grace_time": 40}),
            )
        ),
    }


def _past_rule(chance: Chance) -> dict[str, Any]:
    """Return a rule whose first runs have passed, perhaps with a policy for missed runs."""
    policies: tuple[dict[str, Any], ...] = (
        {},
        {"misfire_grace_time": chance.choice((1, 10, 60))},
        {"coalesce": "all", "catch_up_limit": chance.choice((1, 5))},
        {"coalesce": "earliest"},
        {"delivery": "at_most_once"},
        {"jitter": 3},
        {"spread": 5},
        {"max_runs": chance.choice((1, 3))},
    )
    fields = {
        "kind": "rrule",
        "freq": "SECONDLY",
        "interval": chance.choice((7, 20, 60)),
        "past": chance.choice((0, 30, 300, 3600)),
        **chance.choice(policies),
        **chance.choice(policies),
    }
    if fields.get("coalesce") != "all":
        fields.pop("catch_up_limit", None)  # Such an entry is invalid.
    return fields


@dataclass(frozen=True, slots=True)
class Profile:
    """The ingredients of a random scenario."""

    kinds: tuple[Kind, ...]
    operations: tuple[str, ...]
    step_faults: tuple[str, ...]
    server_faults: tuple[str, ...]
    clock_faults: tuple[str, ...] = ()
    entries: tuple[int, int] = (2, 6)
    #: The operations that may add an entry.
    added_by: tuple[str, ...] = ("save",)
    #: The kinds that ``raw save`` writes; empty for all kinds.
    raw_kinds: tuple[Kind, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    beats: tuple[int, ...] = (2, 2, 3, 4)
    separate_broker: tuple[bool, ...] = (False, False, True)
    locked: tuple[bool, ...] = (True, True, False)
    many_operations: tuple[int, int] = (0, 8)
    many_faults: tuple[int, int] = (1, 5)
    many_broker_faults: int = 1
    duration: tuple[float, float] = (40.0, 120.0)
    #: Static entries: minimum and maximum of their number at the start, their kinds, and minimum
    #: and maximum of the number of deployments.
    statics: tuple[int, int] = (0, 0)
    static_kinds: tuple[Kind, ...] = (_every, _crontab)
    deployments: tuple[int, int] = (0, 0)
    #: Whether a RedBeat 2.4.2 beat leads first, and perhaps a second time.
    legacy: bool = False
    lock_timeouts: tuple[float, ...] = (5.0, 10.0, 30.0)
    #: Whether all beats but one freeze in the middle, and stay so.
    alone: bool = False
    #: Whether the scenario starts minutes before a clock change, with crontabs around this change.
    clock_change: bool = False


EVERYDAY: Final = (_every, _crontab, _rule, _once, _jitter, _misfire, _window, _at_most_once)
RAW: Final = ("raw save", "raw delete", "raw save", "raw disable", "raw enable", "raw run")
RAW_KINDS: Final = (
    *(_every, _crontab, _rule, _rule_of_minutes, _counted_rule),
    *(_jitter, _misfire, _at_most_once),
)
EDITS: Final = ("edit", "save", "pause", "resume", "trigger", "delete")

PROFILES: Final = {
    "calm": Profile(EVERYDAY, EDITS, (), (), many_faults=(0, 0)),
    "processes": Profile(EVERYDAY, EDITS, ("kill", "freeze"), ()),
    "network": Profile(
        (*EVERYDAY, _all_missed),
        EDITS,
        tuple(name for name in STEP_FAULTS if name not in {"kill", "freeze"}),
        ("stall",),
    ),
    "servers": Profile(
        EVERYDAY,
        EDITS,
        ("reset before",),
        ("restart", "stall", "memory full", "replica", "loading", "scripts forgotten"),
    ),
    "data": Profile(
        EVERYDAY,
        (),
        ("kill",),
        ("older data", "no data"),
        many_faults=(1, 2),
        separate_broker=(False,),
    ),
    "clocks": Profile(EVERYDAY, EDITS, ("freeze",), ("stall",), tuple(CLOCK_FAULTS)),
    "deploys": Profile(
        EVERYDAY,
        (*EDITS, "rearm"),
        ("kill", "freeze", "reset before"),
        ("restart", "scripts forgotten", "lock deleted"),
        entries=(1, 2),
        many_faults=(0, 3),
        statics=(1, 4),
        deployments=(1, 3),
        duration=(60.0, 150.0),
    ),
    "raw": Profile(
        RAW_KINDS,
        (*EDITS, *RAW, *RAW),
        ("kill", "request lost", "reset before"),
        ("restart", "scripts forgotten"),
        many_operations=(3, 12),
        many_faults=(0, 4),
    ),
    "legacy": Profile(
        (_every, _crontab, _rule),
        EDITS,
        ("kill", "reset before"),
        ("scripts forgotten",),
        many_faults=(0, 2),
        locked=(True,),
        legacy=True,
    ),
    "everything": Profile(
        (
            *(*EVERYDAY, _all_missed, _limited, _overlap, _one_off),
            *(_rule_of_minutes, _counted_rule),
        ),
        (*EDITS, *EDITS, *RAW, "rearm"),
        tuple(STEP_FAULTS),
        tuple(name for name in SERVER_FAULTS if name != "set lost"),
        tuple(CLOCK_FAULTS),
        many_faults=(1, 8),
        raw_kinds=RAW_KINDS,
        statics=(0, 3),
        deployments=(0, 2),
    ),
    # Servers that are slow.
    "slow": Profile(
        (_often, _every, _rule_of_minutes, _all_missed, _often_at_most_once),
        EDITS,
        (),
        ("slow",),
        entries=(3, 6),
        many_faults=(1, 3),
        many_broker_faults=3,
        lock_timeouts=(5.0, 10.0),
    ),
    # Outages that make runs late or missed; no faults that repeat runs.
    "policies": Profile(
        (
            *(_every, _rule, _crontab, _jitter, _misfire, _window, _all_missed, _few_missed),
            *(_earliest, _limited, _one_off, _overlap, _at_most_once),
        ),
        EDITS,
        (),
        ("restart",),
        entries=(4, 8),
        many_faults=(0, 3),
        lock_timeouts=(5.0,),
    ),
    # A broker that is repeatedly down or refuses messages.
    "brokers": Profile(
        (_often, _every, _rule, _all_missed, _often_at_most_once),
        ("edit", "trigger"),
        (),
        ("restart", "memory full", "memory full", "replica", "loading"),
        entries=(3, 6),
        many_faults=(0, 0),
        separate_broker=(True,),
        many_broker_faults=5,
        duration=(40.0, 80.0),
        lock_timeouts=(5.0,),
    ),
    # Applications that continuously change a few entries.
    "edits": Profile(
        (_every, _often, _once, _misfire, _window, _one_off, _limited),
        (*EDITS, "save", "trigger", "trigger"),
        (),
        (),
        entries=(1, 3),
        many_operations=(15, 40),
        many_faults=(0, 0),
        duration=(40.0, 80.0),
        lock_timeouts=(5.0, 30.0),
    ),
    # Entries that finish, wait for their last run, or catch up missed runs.
    "limits": Profile(
        (_limited, _one_off, _overlap, _few_missed),
        ("trigger",),
        (),
        ("restart",),
        entries=(5, 8),
        many_operations=(0, 4),
        many_faults=(0, 2),
        duration=(40.0, 80.0),
        lock_timeouts=(5.0,),
    ),
    # Enough runs that each fault affects at least one.
    "crowded": Profile(
        (_often, _often_at_most_once),
        ("edit", "trigger", "save"),
        ("kill", "kill", "freeze", "reply lost", "request reset"),
        (),
        entries=(6, 10),
        many_faults=(4, 12),
        duration=(30.0, 60.0),
        lock_timeouts=(5.0,),
    ),
    # One leader decides each run in the second before it's due, as otherwise only many of one
    # instant; see ``FEWEST_EARLY`` in runner.py.
    "early": Profile(
        EVERYDAY,
        EDITS,
        (*STEP_FAULTS, "kill"),
        ("restart", "stall", "memory full", "replica", "lock deleted"),
        tuple(CLOCK_FAULTS),
        entries=(4, 8),
        many_operations=(4, 12),
        separate_broker=(False,),
        locked=(True,),
    ),
    # Data loss of static entries, which a beat then writes again.
    "losses": Profile(
        (),
        (),
        ("kill",),
        ("no data", "no data", "older data"),
        entries=(0, 0),
        many_faults=(1, 2),
        separate_broker=(False,),
        statics=(1, 4),
        static_kinds=(_every, _crontab, _jitter),
        lock_timeouts=(5.0,),
    ),
    # The set of due times is lost, again and again. Only entries of RedBeat are put back.
    "sets": Profile(
        (*EVERYDAY, _limited),
        EDITS,
        ("kill", "reset before"),
        ("set lost", "set lost", "set lost", "restart"),
        entries=(3, 8),
        many_faults=(1, 4),
        statics=(1, 3),
        deployments=(0, 2),
        separate_broker=(False, True),
    ),
    # One healthy beat is enough.
    "alone": Profile(
        (*EVERYDAY, _often, _all_missed, _limited),
        (*EDITS, "trigger", "trigger"),
        ("reset before",),
        ("restart",),
        entries=(4, 8),
        many_faults=(0, 2),
        many_operations=(4, 12),
        beats=(2, 3),
        separate_broker=(False, True),
        lock_timeouts=(5.0, 10.0),
        alone=True,
    ),
    # Crontabs at a clock change; in long scenarios, a repeated hour ends.
    "dst": Profile(
        (_every, _once),
        ("edit", "pause", "resume", "trigger"),
        ("kill", "freeze"),
        ("restart",),
        entries=(3, 8),
        many_operations=(0, 4),
        many_faults=(1, 6),
        duration=(300.0, 900.0),
        clock_change=True,
    ),
    # Failovers that lose writes, while applications change entries.
    "failovers": Profile(
        (*EVERYDAY, _all_missed, _limited, _one_off),
        (*EDITS, "rearm"),
        ("kill", "freeze"),
        ("older data", "older data", "no data", "demoted", "server clock", "lock deleted"),
        entries=(2, 5),
        many_operations=(4, 16),
        many_faults=(1, 4),
    ),
    # Entries whose first runs have passed, added by programs that record no history; backfills.
    "unrecorded": Profile(
        (_past_rule,),
        (*("backfill",) * 6, "edit", "pause", "resume", "trigger"),
        ("kill", "freeze", "reply lost", "request lost"),
        ("scripts forgotten",),
        added_by=("save", "raw save"),
        settings={"redbeat_history_size": 30},
        entries=(4, 8),
        many_operations=(8, 20),
        duration=(40.0, 80.0),
        many_faults=(0, 3),
        separate_broker=(False,),
    ),
}

#: Seconds by which a slow server is late: less and more than a program waits for a reply.
DELAYS: Final = (0.02, 0.2, 1.0, 3.0, 7.0)
#: More seconds than a simulation has.
FOREVER: Final = 100_000.0
#: The year of the clock changes.
YEAR: Final = 2030


def generate(seed: int, profile: str) -> Scenario:
    """Return the scenario that a profile generates from a seed."""
    chance, made = random.Random(f"{profile}:{seed}"), PROFILES[profile]
    locked, beats = chance.choice(made.locked), chance.choice(made.beats)
    active = round(chance.uniform(*made.duration), 3)
    lock_timeout = chance.choice(made.lock_timeouts)
    calm = 40.0 + 3 * lock_timeout
    scenario = Scenario(
        seed=seed,
        beats=beats,
        locked=locked,
        separate_broker=chance.choice(made.separate_broker),
        duration=active + calm,
        calm=calm,
        lock_timeout=lock_timeout,
        start=1_893_456_000.0 + chance.randrange(0, 86_400 * 365),
        settings=made.settings,
        profile=profile,
    )
    if made.clock_change:
        zone, change = chance.choice(instants_of_changes(YEAR))
        scenario = replace(scenario, start=change - chance.randrange(60, 240))
        near = partial(_near_change, zone=zone, change=change)
        rules = partial(_rule_near_change, zone=zone, change=change)
        made = replace(made, kinds=(*made.kinds, *[near] * 6, *[rules] * 3))
        if chance.random() < 0.2:
            active += 3600
            scenario = replace(scenario, duration=active + calm)
    steps = [*_operations(chance, made, active), *_faults(chance, made, active, beats)]
    if made.statics[1]:
        statics, deployments = _deployments(chance, made, active)
        scenario, steps = replace(scenario, statics=statics), [*steps, *deployments]
    if made.legacy:
        scenario = replace(scenario, beats_from=3.0)
        steps += _legacy(chance, active, beats)
    if made.alone:
        steps += _frozen(chance, active, beats)
    for _ in range(made.many_broker_faults if scenario.separate_broker else 0):
        steps += _broker_faults(chance, made, active)
    return replace(scenario, steps=tuple(sorted(steps, key=lambda step: step.at)))


def _operations(chance: Chance, made: Profile, active: float) -> list[Step]:
    names = [f"entry-{number}" for number in range(chance.randint(*made.entries))]
    steps = []
    for name in names:
        kind = chance.choice(made.kinds)
        at = round(chance.uniform(0, active / 4), 3)
        fields = kind(chance)
        # Only profiles with a choice draw a number, so that the other scenarios stay the same.
        added_by = chance.choice(made.added_by) if len(made.added_by) > 1 else made.added_by[0]
        steps.append(Step(at, added_by, "web-1", name, fields=fields))
    if made.operations:
        for _ in range(chance.randint(*made.many_operations)):
            what, at = chance.choice(made.operations), round(chance.uniform(3, active), 3)
            fields = chance.choice(made.kinds)(chance) if what == "save" else {}
            if what == "rearm":
                fields = {**_limited(chance), "max_runs": 1000, "on_finish": "keep"}
            if what == "raw save":
                kinds = made.raw_kinds or made.kinds
                fields = {**chance.choice(kinds)(chance), "anew": chance.random() < 0.4}
            if what in {"raw save", "raw enable", "raw run"}:
                fields["quiet"] = chance.random() < 0.3
            if what == "backfill":
                fields = {"since": round(chance.uniform(-400, 0), 3)}
            who = chance.choice(("web-1", "web-2"))
            steps.append(Step(at, what, who, chance.choice(names), fields=fields))
    return steps


def _deployments(chance: Chance, made: Profile, active: float) -> tuple[dict[str, Any], list[Step]]:
    """Return the initial static entries and their later changes."""
    kinds = made.static_kinds
    names = [f"static-{number}" for number in range(chance.randint(*made.statics))]
    first = statics = {name: chance.choice(kinds)(chance) for name in names}
    count = chance.randint(*made.deployments)
    steps = []
    for number in range(count):
        statics = {name: one for name, one in statics.items() if chance.random() < 0.8}
        changed = chance.choice((*names, f"added-{number}"))
        statics = {**statics, changed: chance.choice(kinds)(chance)}
        at = round((number + chance.uniform(0.1, 0.5)) * active / count, 3)
        pause = round(chance.uniform(0.5, 4), 3)
        steps.append(Step(at, "deploy", "beats", seconds=pause, fields={"statics": statics}))
    return first, steps


def _legacy(chance: Chance, active: float, beats: int) -> list[Step]:
    """Return the times of RedBeat 2.4.2 beats; all other beats stop during the second one."""

    def older_beat(at: float, name: str) -> Step:
        fields = {"killed": chance.random() < 0.5}
        return Step(at, "legacy", name, seconds=round(chance.uniform(6, 20), 3), fields=fields)

    steps = [older_beat(0.0, "legacy-1")]
    if chance.random() < 0.6:
        at = round(chance.uniform(active / 2, active), 3)
        away = round(chance.uniform(5, 20), 3)
        steps.append(older_beat(at, "legacy-2"))
        steps += [
            Step(at + number, "stop", f"beat-{number + 1}", seconds=away) for number in range(beats)
        ]
    return steps


def _faults(chance: Chance, made: Profile, active: float, beats: int) -> list[Step]:
    kinds = (*made.step_faults, *made.server_faults, *made.clock_faults)
    steps = []
    for _ in range(chance.randint(*made.many_faults) if kinds else 0):
        what, at = chance.choice(kinds), round(chance.uniform(2, active), 3)
        beat = f"beat-{chance.randint(1, beats)}"
        seconds = round(chance.choice((0.3, 2.0, 6.0, 15.0)) * chance.uniform(0.5, 1.5), 3)
        if what in STEP_FAULTS:
            step = chance.randint(1, 40) if what in {"kill", "freeze"} else chance.randint(1, 6)
            steps.append(Step(at, what, beat, step=step, seconds=seconds))
        elif what in SERVER_FAULTS:
            fields: dict[str, Any] = {}
            if what == "older data":
                fields = {"age": round(chance.uniform(0.01, 8), 3)}
            elif what == "server clock":
                fields = {"jump": chance.choice((-400.0, -3.0, 3.0, 400.0))}
            elif what == "slow":
                fields = {"delay": chance.choice(DELAYS)}
            steps.append(Step(at, what, "redis", seconds=seconds, fields=fields))
        else:
            jump = chance.choice((-400.0, -3.0, 3.0, 400.0))
            steps.append(Step(at, what, beat, seconds=jump))
    return steps


def _frozen(chance: Chance, active: float, beats: int) -> list[Step]:
    """Return the freezes of all beats but one, which last longer than the simulation."""
    healthy, steps = chance.randint(1, beats), []
    for number in {*range(1, beats + 1)} - {healthy}:
        at, step = round(chance.uniform(2, active), 3), chance.randint(1, 40)
        steps.append(Step(at, "freeze", f"beat-{number}", step=step, seconds=FOREVER))
    return steps


def _broker_faults(chance: Chance, made: Profile, active: float) -> list[Step]:
    kinds = [name for name in made.server_faults if name not in OF_SCHEDULE]
    if not kinds or chance.random() < 0.4:
        return []
    seconds = round(chance.uniform(0.5, 12), 3)
    at = round(chance.uniform(2, active), 3)
    what = chance.choice(kinds)
    fields = {"delay": chance.choice(DELAYS)} if what == "slow" else {}
    return [Step(at, what, "broker", seconds=seconds, fields=fields)]
