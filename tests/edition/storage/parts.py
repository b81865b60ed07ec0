"""The parts of a schedule with shards, as one store for programs.

An entry belongs to one part, by its name; the layout gives the part of a key. A beat does not need
this store: it has a :class:`Store` and a ``Beat`` for each part, see ``beat/parts.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from redbeat.storage.shards import ShardedKeys
from tests.edition.storage.rows import Answer, Change, Look, Reply, Request, Row
from tests.edition.storage.store import Store


class Parts:
    """Stands in for a :class:`Store`: what concerns a key goes to the part of the key.

    Keys with the base prefix are accepted too. ``make`` returns the store of a part.
    """

    def __init__(self, client: Any, keys: ShardedKeys, make: Callable[[int], Store]) -> None:
        self.client = client
        self.keys = keys
        self.parts = [make(number) for number in range(keys.layout.shards)]

    def part_of(self, key: str) -> Store:
        """Return the store of the part that has the entry with a key."""
        return self.parts[self.keys.layout.split(key)[0]]

    def turn(self, request: Request) -> Reply:
        """Carry out the changes of a request, each in its part. One round trip per part.

        A change without a key is carried out in every part. A request that looks needs ``only``.
        """
        answers: dict[int, Answer] = {}
        replies = []
        for part, numbers, look in self._shares(request):
            changes = [self._own(request.changes[number]) for number in numbers]
            reply = part.turn(request._replace(changes=changes, look=look))
            answers.update(zip(numbers, reply.answers, strict=True))
            replies.append(reply)
        return replies[-1]._replace(
            now=max(reply.now for reply in replies),
            answers=[answers[number] for number in range(len(request.changes))],
            rows=[row for reply in replies for row in reply.rows],
        )

    def begin_turn(self, request: Request) -> Callable[[], Reply]:
        """Carry out :meth:`turn`, and return a function that returns its reply."""
        reply = self.turn(request)
        return lambda: reply

    def say(self, key: str, line: str, **options: Any) -> str:
        """Append a line to the inbox of an entry; see :meth:`Store.say`. One round trip."""
        return self.part_of(key).say(self._own_key(key), line, **options)

    def note_rows(self, rows: Iterable[Row]) -> None:
        """Note rows that were read without a turn; see :meth:`Store.note_rows`."""
        for row in rows:
            self.part_of(row.key).note_rows([row])

    def _shares(self, request: Request) -> Iterable[tuple[Store, list[int], Look | None]]:
        """Yield each part that has something to do, the numbers of its changes, and its look."""
        shares: dict[int, list[int]] = {}
        looks = self.keys.layout.split(request.look.only)[0] if request.look is not None else None
        if looks is not None or not request.changes:
            shares[looks or 0] = []
        for number, change in enumerate(request.changes):
            one = self.keys.layout.split(change.key)[0]
            for part in [one] if change.key else range(len(self.parts)):
                shares.setdefault(part, []).append(number)
        for part, numbers in shares.items():
            look = request.look if part == looks else None
            own = look and look._replace(only=self._own_key(look.only))
            yield self.parts[part], numbers, own

    def _own(self, change: Change) -> Change:
        key = self._own_key(change.key)
        return change if key == change.key else replace(change, key=key)

    def _own_key(self, key: str) -> str:
        return self.keys.entry(self.keys.name_of(key)) if key else ""
