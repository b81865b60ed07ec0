"""Tests of the oracle and of the decoding of messages, with made-up ledgers."""

from __future__ import annotations

import pytest
from celery import Celery

from tests.faults.ledger import Ledger, Message
from tests.faults.oracle import Doubled, Occurrence, Report, Rules, grid, judge
from tests.servers import RedisServer
from tests.waiting import wait_until

EXPECTED = {"a": [10.0, 11.0, 12.0, 13.0]}


def message(
    instant: float | None,
    task_id: str = "",
    delay: float = 0.01,
    coalesced: int = 0,
    name: str = "a",
) -> Message:
    """Return a message for an occurrence; by default its id is derived from the instant."""
    received = (instant or 0.0) + delay
    return Message(name, task_id or f"id-{instant}", instant, received, coalesced)


def all_but(*missing: float) -> list[Message]:
    """Return a message for each expected occurrence except the given ones."""
    return [message(instant) for instant in EXPECTED["a"] if instant not in missing]


def test_a_grid_includes_both_ends() -> None:
    assert grid(10.0, 0.5, 11.0) == [10.0, 10.5, 11.0]
    assert grid(10.0, 0.5, 10.9) == [10.0, 10.5]
    assert grid(10.0, 3600.0, 10.0) == [10.0]
    assert grid(10.0, 1.0, 9.0) == []
    assert len(grid(0.1, 0.1, 100.0)) == 1000


def test_a_message_for_each_occurrence_is_right() -> None:
    report = judge(EXPECTED, all_but())
    assert (report.expected, report.dispatched) == (4, 4)
    assert not report.lost
    assert not report.coalesced
    assert (report.same_id, report.other_id) == (0, 0)
    assert not report.early
    assert not report.unknown


def test_a_gap_is_lost_even_before_later_runs() -> None:
    assert judge(EXPECTED, all_but(11.0)).lost == [Occurrence("a", 11.0)]


def test_an_entry_without_messages_is_lost() -> None:
    assert len(judge(EXPECTED, []).lost) == 4


def test_a_header_covers_as_many_instants_as_it_counts() -> None:
    messages = [message(10.0), message(13.0, coalesced=1)]
    report = judge(EXPECTED, messages)
    assert report.lost == [Occurrence("a", 11.0)]
    assert report.coalesced == [Occurrence("a", 12.0)]
    messages[1] = message(13.0, coalesced=2)
    assert not judge(EXPECTED, messages).lost


def test_the_header_of_a_late_first_run_counts_the_instants_after_it() -> None:
    report = judge(EXPECTED, [message(10.0, delay=1.5, coalesced=1), message(13.0)])
    assert report.coalesced == [Occurrence("a", 11.0)]
    assert report.lost == [Occurrence("a", 12.0)]


def test_a_header_does_not_make_a_dispatched_run_coalesced() -> None:
    report = judge(EXPECTED, [message(10.0), message(11.0), message(13.0, coalesced=2)])
    assert report.coalesced == [Occurrence("a", 12.0)]
    assert report.dispatched == 3


def test_a_later_message_may_stand_for_expected_runs() -> None:
    messages = [*all_but(12.0, 13.0), message(15.0, coalesced=3)]
    report = judge(EXPECTED, messages)
    assert [occurrence.instant for occurrence in report.coalesced] == [12.0, 13.0]
    assert not report.lost
    assert report.dispatched == 2
    messages[-1] = message(15.0, coalesced=2)
    assert judge(EXPECTED, messages).lost == [Occurrence("a", 12.0)]


def test_coalescing_covers_gaps_that_a_run_follows() -> None:
    report = judge(EXPECTED, all_but(10.0, 12.0), coalescing=True)
    assert [occurrence.instant for occurrence in report.coalesced] == [10.0, 12.0]
    assert judge(EXPECTED, all_but(13.0), coalescing=True).lost == [Occurrence("a", 13.0)]
    messages = [*all_but(13.0), message(14.0)]
    assert not judge(EXPECTED, messages, coalescing=True).lost


def test_doubles_are_counted_by_id() -> None:
    messages = [*all_but(), message(11.0), message(11.0), message(12.0, "x"), message(12.0, "y")]
    report = judge(EXPECTED, messages)
    assert report.doubled_same_id == [Doubled(Occurrence("a", 11.0), 2)]
    assert report.doubled_other_id == [Doubled(Occurrence("a", 12.0), 2)]
    assert (report.same_id, report.other_id) == (2, 2)


def test_early_and_late() -> None:
    messages = [*all_but(10.0, 11.0), message(10.0, delay=-0.1), message(11.0, delay=2.0)]
    report = judge(EXPECTED, messages)
    assert [early.scheduled_at for early in report.early] == [10.0]
    assert report.late(1.0) == [Occurrence("a", 11.0)]
    assert report.late(3.0) == []


@pytest.mark.parametrize(
    "stranger", [message(11.3), message(9.0), message(None), message(10.0, name="b")]
)
def test_a_message_of_no_occurrence_is_unknown(stranger: Message) -> None:
    report = judge(EXPECTED, [*all_but(), stranger])
    assert report.unknown == [stranger]
    assert report.dispatched == 4


def test_instants_match_to_less_than_a_millisecond() -> None:
    report = judge({"a": [10.0]}, [message(10.0000004)])
    assert report.dispatched == 1
    assert judge({"a": [10.0]}, [message(9.998)]).unknown


def judge_by(rules: Rules, *messages: Message) -> Report:
    """Check messages of an entry that has these rules, and return the report."""
    return judge(EXPECTED, messages, rules={"a": rules})


def test_an_id_belongs_to_one_occurrence() -> None:
    assert judge(EXPECTED, [*all_but(11.0), message(11.0, "id-10.0")]).reused == ["id-10.0"]
    other = message(10.0, "id-10.0", name="b")
    assert judge({**EXPECTED, "b": [10.0]}, [*all_but(), other]).reused == ["id-10.0"]
    assert not judge(EXPECTED, [*all_but(), message(10.0)]).reused


def test_runs_beyond_the_limit_are_in_excess() -> None:
    first, second, third = message(10.0), message(11.0), message(12.0)
    limited = Rules(limit=2)
    assert not judge_by(limited, first, second, second).wrong
    assert judge_by(limited, first, second, third).excess == [third]
    assert judge_by(limited, first).lost == [Occurrence("a", at) for at in (11.0, 12.0, 13.0)]
    assert not judge_by(limited, first, message(12.0, coalesced=1)).wrong
    assert judge_by(limited, first, message(12.0)).lost == [Occurrence("a", 11.0)]


def test_a_second_id_of_a_one_off_is_in_excess() -> None:
    first, again = message(10.0), message(11.0, coalesced=1)
    assert judge_by(Rules(limit=1), first, again).excess == [again]
    assert judge_by(Rules(limit=1), first, message(10.0, "other")).other_id == 1


def test_a_trigger_that_returned_makes_a_run() -> None:
    run = Message("a", "t", 10.4, 10.5, triggered=True)
    rules = Rules(triggers={"t": 10.4})
    assert not judge_by(rules, *all_but(), run).wrong
    assert judge_by(rules, *all_but(), run, run).same_id == 1
    assert judge_by(rules, *all_but()).lost == [Occurrence("a", 10.4)]
    assert judge_by(Rules(), *all_but(), run).unknown == [run]


def test_a_run_overlaps_until_its_end_is_reported_or_its_timeout_is_near() -> None:
    first, second = message(10.0), message(11.0)
    last = message(13.0)
    assert not judge_by(Rules(overlap_timeout=1.8), first, last).wrong
    assert judge_by(Rules(overlap_timeout=9.0), first, second, last).overlapping == [second, last]
    ended = Rules(overlap_timeout=9.0, ends={"id-10.0": 10.5, "id-11.0": 11.5})
    assert not judge_by(ended, first, second, last).wrong
    late = Rules(overlap_timeout=9.0, ends={"id-10.0": 11.5})
    assert judge_by(late, first, second).overlapping == [second]


def test_the_ledger_reads_what_celery_sends() -> None:
    with RedisServer("--appendonly", "yes", "--appendfsync", "always") as broker:
        app = Celery("sender", broker=broker.url, set_as_current=False)
        with Ledger(broker.url) as ledger, app.connection() as connection:
            headers = {
                "periodic_task_name": "hourly",
                "scheduled_at": "2030-01-01T00:00:00.5+00:00",
                "coalesced": 3,
            }
            app.send_task("t", task_id="1", headers=headers, connection=connection)
            app.send_task("t", task_id="2", kwargs={"entry": "daily"}, connection=connection)
            app.send_task("t", task_id="3", headers={"triggered": True}, connection=connection)
            wait_until(lambda: len(ledger) == 3)
            hourly, daily, unnamed = ledger.messages
            assert (hourly.entry, daily.entry, unnamed.entry) == ("hourly", "daily", "t")
            assert [m.task_id for m in ledger.messages] == ["1", "2", "3"]
            assert (hourly.scheduled_at, daily.scheduled_at) == (1893456000.5, None)
            assert (hourly.coalesced, daily.coalesced) == (3, 0)
            assert hourly.sender > 0
            assert [m.triggered for m in ledger.messages] == [False, False, True]
            broker.kill()
            broker.restart()
            app.send_task("t", task_id="4", retry=True, retry_policy={"max_retries": 50})
            wait_until(lambda: len(ledger) == 4)
            assert ledger.since(3)[0].task_id == "4"
        app.close()
