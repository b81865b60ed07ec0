"""Runs whose messages are published, and those of them that the broker has not confirmed yet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from redbeat.entry import RedBeatSchedulerEntry
from redbeat.storage.records import Claim

from .pipelining import Pipe, pipe_of

__all__ = ("Letter", "Outbox")

#: Seconds after which messages leave: none is to be late.
LEAVE_AFTER: Final = 0.02

#: Bytes of messages after which they are sent in any case.
MAX_BYTES: Final = 1 << 20

#: Letters that are seen to together although the broker has confirmed each.
AT_ONCE: Final = 50


@dataclass(slots=True)
class Letter:
    """A run that was published; ``seconds`` is what the entry's ``is_due`` said of the next one.

    ``error`` is why it is not out after all, ``shared`` whether other letters may be to blame.
    """

    entry: RedBeatSchedulerEntry
    claim: Claim
    seconds: float | None
    now: float
    error: Exception | None = None
    shared: bool = False


class Outbox:
    """The letters of one beat, in the order in which they were published.

    ``window`` is how many may be on their way; with 1 each is waited for by itself. So it is with
    transports that cannot do otherwise. What is to be done about a letter is done by and by, for
    many of them in a row: that takes less time than one after the other between two messages.
    """

    def __init__(self, window: int, clock: Callable[[], float]) -> None:
        self._window = window
        self._clock = clock
        self._pipe: Pipe | None = None
        self._producer: Any = None
        #: The operations of one publish, one for each queue it goes to, none for one that was
        #: waited for; and the letter they carry, None for one that failed half-way.
        self._sent: list[tuple[int, Letter | None]] = []
        #: Those of them that have left, and that the broker has not answered yet.
        self._left: list[tuple[int, Letter | None]] = []
        self._open: Pipe | None = None
        #: Whether the last publish sent anything; None where nobody can tell.
        self.carried: bool | None = None
        #: Whether there were letters already when the last one was published.
        self._others = False
        self._before = 0
        self._letter: Letter | None = None
        self._opened = 0.0

    def publishing(self, producer: Any, alone: bool = False) -> Outbox:
        """Return a context in which ``producer`` need not wait for the broker, unless ``alone``."""
        self._open = None if alone else self._pipe_of(producer)
        self._others = bool(self._sent or self._left)
        return self

    def __enter__(self) -> None:
        if self._open is not None:
            self._before = self._open.size
            self._open.__enter__()

    def __exit__(self, *exc_info: object) -> None:
        pipe, letter, operations = self._open, self._letter, 0
        self._open = self._letter = None
        self.carried = None
        if pipe is not None:
            pipe.__exit__(*exc_info)
            operations = pipe.size - self._before
            self.carried = operations > 0
        if operations or letter is not None:
            if not self._sent:
                self._opened = self._clock()
            self._sent.append((operations, letter))

    def add(self, letter: Letter) -> None:
        """Take the run that is published in the context of :meth:`publishing`."""
        self._letter = letter

    def _pipe_of(self, producer: Any) -> Pipe | None:
        """The pipe to publish through; letters on the way stay with that of their channel."""
        pipe = self._pipe
        if producer is self._producer and (pipe is None or pipe.channel is producer.channel):
            return pipe
        if self._window <= 1 or self._sent or self._left:
            return None
        self.close()
        self._producer, self._pipe = producer, pipe_of(producer.channel)
        return self._pipe

    @property
    def shares_errors(self) -> bool:
        """Whether what went wrong with the last letter may be the fault of one before it."""
        return self._pipe is not None and self._pipe.shares_errors and self._others

    def ripe(self, now: float) -> bool:
        """Whether it is time to :meth:`advance`; ``now`` is by the clock."""
        if not self._sent:
            return False
        if now - self._opened > LEAVE_AFTER:
            return True
        count, pipe = len(self._sent), self._pipe
        if pipe is None:
            return count >= AT_ONCE
        # The other half may be on its way.
        return count >= self._window // 2 or pipe.nbytes > MAX_BYTES

    def advance(self) -> list[Letter]:
        """Have letters leave, and return those that left the last time, as :meth:`deliver` does.

        Mostly the broker has answered these meanwhile, so that nobody waits.
        """
        if self._pipe is None:
            return self.deliver()
        letters = self._answered()
        self._leave()
        return letters

    def deliver(self) -> list[Letter]:
        """Wait until the broker has answered all letters; return them, with what went wrong.

        A letter is good only when every operation of it is. Takes no longer than a publish may, for
        those that left and once more for the others.
        """
        letters = self._answered()
        if self._sent:
            self._leave()
            letters += self._answered()
        return letters

    def close(self) -> None:
        """Let go of what belongs to the outbox; nothing may be in it."""
        if self._pipe is not None:
            self._pipe.close()
        self._producer = self._pipe = None

    def _leave(self) -> None:
        self._left, self._sent = self._sent, []
        if self._pipe is not None:
            self._pipe.leave()

    def _answered(self) -> list[Letter]:
        """Wait for the answers to the letters that left."""
        left, self._left = self._left, []
        pipe = self._pipe
        outcomes = iter([] if pipe is None else pipe.answers())
        letters = []
        for operations, letter in left:
            errors = operations and list(filter(None, islice(outcomes, operations)))
            if letter is None:
                continue
            letters.append(letter)
            if errors:
                letter.error = errors[0]
                letter.shared = pipe is not None and pipe.shares_errors
        return letters
