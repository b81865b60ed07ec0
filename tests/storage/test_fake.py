"""The store on a fake Redis, which lacks SHA-1 in scripts: for the tests of users."""

from __future__ import annotations

import fakeredis

from redbeat.storage import words
from redbeat.storage.reading import NOTHING_HAS
from redbeat.storage.rows import Change, Look, digest_of
from tests.storage.places import LOCK, Place, record


def test_a_fake_redis_takes_turns() -> None:
    place = Place(fakeredis.FakeRedis())
    key = place.put("a", meta="é")
    assert place.turn(look=Look(), lock=LOCK, in_hand=True).standing == words.NEW_LEADER
    (row,) = place.turn(look=Look(), lock=LOCK, in_hand=True, counts_id="1").rows
    assert row.meta == "é"
    change = record(row, score=place.now + 100, line='"a"', unset=("meta",))
    reply = place.turn(change, look=Look(), lock=LOCK, in_hand=True)
    assert [answer.word for answer in reply.answers] == [words.DONE]
    assert reply.rows == []
    assert place.turn(look=Look(), lock=LOCK, in_hand=True).next == place.score(key)
    covered = Change(key, expect=digest_of(place.row(key), "sc"), covers="sc", score=9)
    assert place.words(covered) == [words.DONE]
    assert place.words(Change(key, expect=NOTHING_HAS, score=9)) == [words.DIFFERS]
    assert place.store.say(key, '"x"', kind=words.TRIGGER) == words.DONE
    assert place.look(shares=True) == ["a"]
