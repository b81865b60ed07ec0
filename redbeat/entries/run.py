"""A rule is what an entry says; a run is one occurrence, from a beat's look to its record."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from redbeat.entries.decide import Plan
from redbeat.entries.history import History
from redbeat.entries.policy import Policy

if TYPE_CHECKING:
    from redbeat.beat.own_code import OwnCall
    from redbeat.entries.state import State
    from redbeat.entries.verdicts import Send, Verdict
    from redbeat.storage.rows import Row

#: What the change on its way does: it carries the message, holds the run before the publish,
#: records a held run after it, records a run before its publish, stores that nothing is sent, or
#: gives a held run back.
INSIDE: Final = "inside"
HOLD: Final = "hold"
RECORD: Final = "record"
FIRST: Final = "first"
REST: Final = "rest"
RELEASE: Final = "release"

#: The verdict of a run before there is one.
UNJUDGED: Final[Any] = None


@dataclass(frozen=True, slots=True)
class Rule:
    """What an entry says, decoded once and shared by its runs. It never changes.

    ``definition`` and ``policy_text`` are stored JSON. ``plan`` has the schedule's occurrences,
    without calendars. ``asks`` is whether only the schedule itself can compute them; see
    :func:`redbeat.schedules.next_run.asks_itself`.
    """

    key: str
    name: str
    task: str
    args: Any
    kwargs: Any
    options: dict[str, Any]
    enabled: bool
    schedule: Any
    policy: Policy
    plan: Plan
    definition: str
    policy_text: str
    asks: bool = False


@dataclass(slots=True)
class Run:
    """One entry that a beat looked at, what was decided, and what became of it.

    Attributes:
        row: what was stored at the look.
        now: Redis's time at the look, UNIX seconds.
        verdict: unset until it is made, and if the schedule raised an error.
        stage: what the change on its way does, one of the constants above.
        own_id: the id that RedBeat computes for the run.
        left: whether a message left in the call that sent it, or perhaps in one that failed.
        seen: whether a message was seen in the call, and the broker did not refuse it.
        plain: whether the change may carry the message, and no foreign code takes part.
        push: the broker commands that make up the message.
        stored: the row as left by the change that holds the run or records it first; None before.
        hold_ends: the local time until which a held run may be published, monotonic seconds.
        headers: the message's headers that are not in the entry's options.
        asks: whether the entry object itself decides whether it is due.
        own: the call of user code that sends the run.
    """

    row: Row
    rule: Rule
    state: State
    history: History
    now: float
    verdict: Verdict = UNJUDGED
    stage: str = ""
    task_id: str = ""
    own_id: str = ""
    left: bool = False
    seen: bool = False
    plain: bool = False
    push: list[list[str | bytes]] = field(default_factory=list)
    stored: Row | None = None
    held_state: State | None = None
    hold_ends: float = 0.0
    headers: dict[str, Any] = field(default_factory=dict)
    asks: bool = False
    own: OwnCall | None = None
    error: Exception | None = None

    @property
    def declined(self) -> bool:
        """Whether user code said that the entry doesn't run now, and sent nothing."""
        return self.own is not None and self.own.declined and not self.left

    @property
    def send(self) -> Send:
        assert self.verdict.send is not None
        return self.verdict.send

    @property
    def at(self) -> datetime:
        return self.send.at
