"""Several beats: the lock, shares without one, what a beat has in hand, counts, and a loss."""

from __future__ import annotations

import json
from typing import Any

import pytest
import redis

from redbeat.metrics.counts import counts_of
from redbeat.storage import words
from redbeat.storage.rows import Change, Hand, Look, Reply, Request, new_mark
from redbeat.storage.store import Store
from tests.storage.places import KEYS, LOCK, Place, aside, key_of, record


class Beat:
    """A beat with a store of its own."""

    def __init__(self, place: Place, token: str, lock: tuple[str, int, str] | None = LOCK) -> None:
        self.store = Store(place.client, KEYS)
        self.token = token
        self.lock = lock

    def turn(self, *changes: Change, **more: Any) -> Reply:
        more = {"look": Look(), "lock": self.lock, **more}
        return self.store.turn(Request(self.token, changes=changes, **more))

    def names(self, *changes: Change, **more: Any) -> list[str]:
        return [row.key.removeprefix(KEYS.prefix) for row in self.turn(*changes, **more).rows]


# -- the lock --------------------------------------------------------------------------------------


def test_a_free_lock_is_taken_and_the_new_leader_gets_no_rows_yet(place: Place) -> None:
    place.put("a")
    leader = Beat(place, "one")
    reply = leader.turn()
    assert (reply.standing, reply.rows, reply.holder) == (words.NEW_LEADER, [], "one")
    assert place.client.get(LOCK[0]) == b"one"
    assert 0 < place.client.pttl(LOCK[0]) <= LOCK[1]
    assert leader.turn().standing == words.LEADS
    assert leader.names() == ["a"]


@pytest.mark.parametrize("due", [0, 1000])
def test_a_new_leader_whose_reply_was_lost_is_told_again(place: Place, due: float) -> None:
    place.put("a", place.now + due)
    place.client.set(LOCK[0], "one", px=5000)
    beat = Beat(place, "one")
    assert beat.turn().standing == words.NEW_LEADER
    assert beat.turn().standing == words.LEADS


def test_a_standby_whose_reply_was_lost_when_it_took_the_lock_is_told_again(place: Place) -> None:
    leader, standby = Beat(place, "one"), Beat(place, "two")
    leader.turn()
    assert leader.turn().standing == words.LEADS
    place.client.set(LOCK[0], "two", px=5000)
    assert leader.turn().standing == words.STANDBY
    assert standby.turn().standing == words.NEW_LEADER
    place.client.set(LOCK[0], "one", px=5000)
    assert standby.turn().standing == words.STANDBY
    assert leader.turn().standing == words.NEW_LEADER


def test_each_turn_of_the_leader_renews_the_lock(place: Place) -> None:
    leader = Beat(place, "one")
    key = place.put("a", place.now + 100)
    leader.turn()
    for changes in ([], [Change(key, score=place.now + 50)]):
        place.client.pexpire(LOCK[0], 50)
        assert leader.turn(*changes).standing == words.LEADS
        assert place.client.pttl(LOCK[0]) > 1000


def test_an_idle_leader_whose_lock_has_expired_takes_it_again(place: Place) -> None:
    leader = Beat(place, "one")
    leader.turn()
    assert leader.turn().standing == words.LEADS
    place.client.delete(LOCK[0])
    assert leader.turn().standing == words.NEW_LEADER
    assert place.client.get(LOCK[0]) == b"one"


def test_a_standby_gets_no_rows_but_its_changes_are_applied(place: Place) -> None:
    key = place.put("a")
    Beat(place, "one").turn()
    standby = Beat(place, "two")
    place.client.pexpire(LOCK[0], 3000)
    for reply in (standby.turn(), standby.turn(counts_id="1")):
        assert (reply.standing, reply.rows, reply.holder) == (words.STANDBY, [], "one")
        assert 0 < reply.holder_ttl <= 3
    change = record(place.row(key), score=5)
    reply = standby.turn(change)
    assert (reply.standing, reply.rows) == (words.STANDBY, [])
    assert reply.answers[0].word == words.DONE
    assert place.score(key) == 5
    assert place.client.pttl(LOCK[0]) <= 3000, "it is not the standby's to renew"


def test_a_leader_that_counts_as_dead_loses_its_lock(place: Place) -> None:
    first, second = Beat(place, "one"), Beat(place, "two", (*LOCK[:2], "other"))
    first.turn()
    assert second.turn().standing == words.STANDBY
    second.lock = (*LOCK[:2], "one")
    assert second.turn().standing == words.NEW_LEADER
    assert place.client.get(LOCK[0]) == b"two"
    assert first.turn().standing == words.STANDBY
    assert first.turn(counts_id="1").holder == "two"


def test_a_key_that_is_no_lock_lets_nobody_lead(place: Place) -> None:
    place.client.lpush(LOCK[0], "x")
    key = place.put("a")
    beat = Beat(place, "one")
    for reply in (beat.turn(), beat.turn(Change(key, score=2))):
        assert (reply.standing, reply.rows) == (words.STANDBY, [])
        assert "not a lock" in reply.holder
    assert place.score(key) == 2


# -- shares ----------------------------------------------------------------------------------------


def share(beat: Beat, **more: Any) -> set[str]:
    return set(beat.names(look=Look(shares=True, **more)))


@pytest.fixture
def pair(place: Place) -> tuple[Beat, Beat]:
    """Two beats without a lock that know of each other."""
    beats = Beat(place, "one", None), Beat(place, "two", None)
    for beat in beats:
        share(beat)
    return beats


def fresh_share(place: Place, beat: Beat, names: set[str], **more: Any) -> set[str]:
    """Let entries become due at this moment, and return what a beat looks at."""
    place.client.zadd(KEYS.schedule, dict.fromkeys(map(key_of, names), place.now))
    return share(beat, **more)


def entries(place: Place, count: int) -> set[str]:
    """Write entries that are not in the schedule yet, and return their names."""
    names = {f"e{number}" for number in range(count)}
    for name in names:
        place.put(name, None)
    return names


def test_beats_without_a_lock_share_what_is_due(place: Place, pair: tuple[Beat, Beat]) -> None:
    names = entries(place, 60)
    first, second = (fresh_share(place, beat, names) for beat in pair)
    assert first | second == names
    assert not first & second
    assert 15 < len(first) < 45


def test_ten_in_a_hundred_are_late_ones_of_another(place: Place, pair: tuple[Beat, Beat]) -> None:
    one, _ = pair
    names = entries(place, 200)
    own = fresh_share(place, one, names, limit=500)
    for number, name in enumerate(names):
        place.client.zadd(KEYS.schedule, {key_of(name): 100 + number})
    for limit in (20, 100):
        found = share(one, limit=limit)
        assert len(found - own) == limit // 10
        assert len(found) == min(limit, len(own) + limit // 10)


def test_a_beat_with_nothing_of_its_own_takes_all_late_ones(
    place: Place, pair: tuple[Beat, Beat]
) -> None:
    one, two = pair
    names = entries(place, 40)
    own = fresh_share(place, one, names)
    place.client.zrem(KEYS.schedule, *map(key_of, own))
    theirs = names - own
    assert fresh_share(place, one, theirs) == set(), "others' are not late yet"
    for name in theirs:
        place.client.zadd(KEYS.schedule, {key_of(name): 5})
    assert share(one) == theirs == share(two)


def test_next_leaves_the_others_a_second(place: Place, pair: tuple[Beat, Beat]) -> None:
    now = place.now
    key = place.put("e", now + 50)
    nexts = sorted(beat.turn(look=Look(shares=True), counts_id="1").next or 0 for beat in pair)
    assert nexts == [pytest.approx(place.score(key)), pytest.approx(now + 51, abs=0.01)]
    for number in range(20):
        place.put(f"e{number}", now + 60)
    found = [beat.turn(look=Look(shares=True), counts_id="2").next or 0 for beat in pair]
    assert sorted(found) == nexts
    found = [beat.turn(look=Look(shares=True)).next or 0 for beat in pair]
    assert found == [nexts[0]] * 2, "an idle turn does not look whose it is"


def test_a_beat_that_was_seen_in_the_future_does_not_count_as_active(place: Place) -> None:
    """Another program wrote it, or Redis had a wrong clock."""
    seen = {"redbeat3:a": place.now - 5, "redbeat3:b": place.now + 1000}
    place.client.zadd(aside("beats"), seen)
    counts = counts_of(Store(place.client, KEYS), None, -2.0, 60.0)
    assert [beat.token for beat in counts.beats] == ["redbeat3:a"]


def test_a_beat_that_was_not_seen_for_ten_seconds_has_no_share(
    place: Place, pair: tuple[Beat, Beat]
) -> None:
    one, _ = pair
    names = entries(place, 20)
    assert len(fresh_share(place, one, names)) < 20
    place.client.zadd(aside("beats"), {"two": place.now - 11, "locked lock": place.now})
    place.client.zadd(aside("beats"), {"ghost": place.now + 3600})
    assert fresh_share(place, one, names) == names


def test_an_inbox_is_taken_by_share(place: Place, pair: tuple[Beat, Beat]) -> None:
    one, two = pair
    for number in range(20):
        key = place.put(f"e{number}", place.now + 100)
        place.store.say(key, f'["trigger","{number}"]', kind=words.TRIGGER)
    first, second = share(one), share(two)
    assert not first & second
    assert len(first | second) == 20


def test_an_inbox_of_another_beat_waits_for_it_for_a_second(
    place: Place, pair: tuple[Beat, Beat]
) -> None:
    one, _ = pair
    for number in range(20):
        key = place.put(f"e{number}", place.now + 100)
        place.store.say(key, f'["trigger","{number}"]', kind=words.TRIGGER)
    share(one)
    reply = one.turn(look=Look(shares=True))
    assert reply.rows == []
    assert reply.next is not None
    assert 0 < reply.next - reply.now <= 1, "it does not ask again at once"
    for key in place.client.zrange(aside("inbox"), 0, -1):
        place.client.zadd(aside("inbox"), {key: place.now - 1.5})
    assert len(share(one)) == 20


# -- in hand ---------------------------------------------------------------------------------------


def test_a_look_notes_what_it_gave_out_until_the_next(place: Place) -> None:
    key = place.put("a")
    leader = Beat(place, "one")
    leader.turn(in_hand=True)
    leader.turn(in_hand=True)
    assert place.client.hgetall(aside("hands")) == {b"one": json.dumps([key]).encode()}
    change = record(place.row(key), score=place.now + 100)
    leader.turn(look=None, in_hand=True)
    assert place.client.exists(aside("hands")), "this turn does not look, so all is in hand still"
    leader.turn(change, in_hand=True)
    assert not place.client.exists(aside("hands"))


def test_a_note_whose_reply_was_lost_goes_with_the_next_turn(place: Place) -> None:
    key = place.put("a")
    leader = Beat(place, "one")
    leader.turn(in_hand=True)
    leader.store.begin_turn(Request("one", LOCK, look=Look(), in_hand=True))
    place.client.zadd(KEYS.schedule, {key: place.now + 100})
    leader.turn(in_hand=True)
    assert not place.client.exists(aside("hands"))


def test_a_clean_stop_forgets_what_is_in_hand(place: Place) -> None:
    place.put("a")
    leader = Beat(place, "one")
    leader.turn(in_hand=True)
    leader.turn(in_hand=True)
    leader.turn(look=Look(limit=0))
    assert not place.client.exists(aside("hands"))


def test_a_successor_is_told_what_the_dead_leader_had_in_hand(place: Place) -> None:
    keys = [place.put(name, number + 1) for number, name in enumerate("ab")]
    dead, successor = Beat(place, "one"), Beat(place, "two", (*LOCK[:2], "one"))
    dead.turn(in_hand=True)
    dead.turn(in_hand=True)
    reply = successor.turn(in_hand=True)
    assert reply.standing == words.NEW_LEADER
    assert reply.hands == [Hand("one", keys, alone=False)]
    suspect = successor.turn(look=Look(only=keys[1]), in_hand=True)
    assert [row.key for row in suspect.rows] == [keys[1]]
    third = Beat(place, "three", (*LOCK[:2], "two"))
    hands = sorted(third.turn(in_hand=True).hands)
    assert hands == [Hand("one", keys, alone=False), Hand("two", [keys[1]], alone=True)]
    forget = [Change("", index=[["HDEL", "hands", hand.token]]) for hand in hands]
    third.turn(*forget)
    assert not place.client.exists(aside("hands"))


def test_without_a_lock_what_a_beat_had_in_hand_is_told_after_five_seconds(
    place: Place, pair: tuple[Beat, Beat]
) -> None:
    one, two = pair
    key = place.put("a")
    look = Look(shares=True)
    for beat in pair:
        place.client.zadd(KEYS.schedule, {key: 1})
        beat.turn(look=look, in_hand=True)
    assert place.client.hlen(aside("hands")) == 2
    assert list(one.turn(look=look, in_hand=True).hands) == []
    place.client.zadd(aside("beats"), {"two": place.now - 4})
    assert list(one.turn(look=look, in_hand=True).hands) == []
    place.client.zadd(aside("beats"), {"two": place.now - 5.1})
    assert one.turn(look=look, in_hand=True).hands == [Hand("two", [key], alone=False)]
    for _ in range(3):
        assert list(one.turn(look=look, in_hand=True).hands) == [], "it was told"
        place.client.zadd(KEYS.schedule, {key: place.now + 100})
    assert list(two.turn(look=look, in_hand=True).hands) == []


# -- counts ----------------------------------------------------------------------------------------


def test_counts_are_added_once(place: Place) -> None:
    place.put("a")
    place.client.sadd(KEYS.statics, "a", "b")
    place.client.hset(aside("quarantine"), "x", "{}")
    leader = Beat(place, "one")
    for counts_id in ("1", "1", "2"):
        reply = leader.turn(counts={"runs": 3, "skipped": 1}, counts_id=counts_id)
    assert (reply.statics, reply.quarantined) == (2, 1)
    stats = place.client.hgetall(aside("stats"))
    assert (stats[b"runs"], stats[b"skipped"], stats[b"members"]) == (b"6", b"2", b"1")
    assert float(stats[b"last_tick"]) == pytest.approx(place.now, abs=5)
    assert stats[b"leader"].endswith(b" one")
    assert place.client.zrange(aside("beats"), 0, -1) == [b"one lock"]


def test_a_new_leader_removes_the_problem_of_the_last(place: Place) -> None:
    place.client.hset(aside("stats"), "problem", "out of luck")
    leader = Beat(place, "one")
    leader.turn(counts_id="1")
    assert not place.client.hexists(aside("stats"), "problem")
    place.client.hset(aside("stats"), "problem", "its own")
    leader.turn(counts_id="2")
    assert place.client.hexists(aside("stats"), "problem")


# -- the loss of the schedule ----------------------------------------------------------------------


def noted(place: Place, count: int) -> Beat:
    """Return a leader that has noted this number of members, after its first scan."""
    for number in range(count):
        place.put(f"e{number}", place.now + 100)
    leader = Beat(place, "one")
    assert leader.turn(counts_id="first").lost == "new"
    forget = Change("", index=[["HDEL", "stats", "lost"]])
    leader.turn(forget)
    assert leader.turn(counts_id="second").lost == ""
    return leader


def test_an_absent_schedule_is_a_loss_and_its_mark_stays(place: Place) -> None:
    leader = noted(place, 2)
    place.client.delete(KEYS.schedule)
    mark = leader.turn(counts_id="3").lost
    assert float(mark) == pytest.approx(place.now, abs=5)
    leader.turn(Change(key_of("e0"), add=5))
    assert leader.turn(counts_id="4").lost == mark


def test_only_the_mark_that_was_read_is_forgotten(place: Place) -> None:
    """A second loss may be noted between the last portion of a scan and its end."""
    leader = noted(place, 2)
    place.client.delete(KEYS.schedule)
    mark = leader.turn(counts_id="3").lost
    place.client.hset(KEYS.stats, "lost", "another")

    leader.turn(Change("", index=[["FORGET", "stats", "lost", mark]]))
    assert leader.turn(counts_id="4").lost == "another"
    leader.turn(Change("", index=[["FORGET", "stats", "lost", "another"]]))
    assert leader.turn(counts_id="5").lost == ""


def test_a_save_does_not_hide_a_loss(place: Place) -> None:
    leader = noted(place, 2)
    place.client.delete(KEYS.schedule)
    tool = Beat(place, "", None)
    tool.turn(Change(key_of("e0"), new_mark(), add=5), look=None)
    assert leader.turn(counts_id="3").lost != ""


def test_most_members_gone_is_a_loss(place: Place) -> None:
    leader = noted(place, 20)
    place.client.zrem(KEYS.schedule, *(key_of(f"e{number}") for number in range(17)))
    assert leader.turn(counts_id="3").lost == ""
    place.client.hset(aside("stats"), "members", 30)
    assert leader.turn(counts_id="4").lost != ""


@pytest.mark.parametrize("in_turn", [True, False])
def test_own_deletes_are_no_loss(place: Place, in_turn: bool) -> None:
    leader = noted(place, 20)
    deletes = [Change(key_of(f"e{number}"), delete=True) for number in range(20)]
    if in_turn:
        assert leader.turn(*deletes, counts_id="3").lost == ""
    else:
        Beat(place, "", None).turn(*deletes, look=None)
    assert place.client.zcard(KEYS.schedule) == 0
    assert leader.turn(counts_id="4").lost == ""
    assert leader.turn(Change(key_of("new"), set={"definition": "{}"}, add=9)).lost == ""
    assert leader.turn(counts_id="5").lost == ""


def test_one_member_that_vanishes_is_no_loss(place: Place) -> None:
    leader = noted(place, 1)
    place.client.delete(KEYS.schedule)
    assert leader.turn(counts_id="3").lost == ""


@pytest.mark.parametrize("protocol", [2, 3])
def test_a_client_that_decodes_replies_is_as_good(redis_url: str, protocol: int) -> None:
    options = {"decode_responses": True, "protocol": protocol}
    with redis.Redis.from_url(redis_url, **options) as client:
        place = Place(client)
        key = place.put("a", meta="é")
        client.execute_command("HSET", key, "policy", b"\xff")
        row = place.row(key)
        assert (row.meta, row.policy) == ("é", "\udcff")
        assert place.words(record(row, score=5)) == [words.DONE]
        read = place.store.begin_turn(Request("t", None, look=Look()))
        assert [row.key for row in read().rows] == [key]
        assert place.store.say(key, '"x"', kind=words.END) == words.DONE
