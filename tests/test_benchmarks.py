"""The benchmarks run with this package alone. The tests assert counts, never durations."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

from benchmarks import core, spread
from benchmarks.__main__ import MEASUREMENTS, main
from benchmarks.beats import BeatCase, Message, metrics_of, run_beat
from benchmarks.delay import delayed
from benchmarks.drain import Scene, drain_bare, drain_beats
from benchmarks.growth import DUE, PEERS_DUE
from benchmarks.metering import Metrics
from benchmarks.paced import metrics_of as paced_metrics
from benchmarks.pages import put, taken
from benchmarks.report import SECTIONS, as_rst, targets, write_docs
from benchmarks.rows import Finding, Row, Series, Store, target_row
from benchmarks.scale import Cost, table
from benchmarks.scaling import arithmetic
from benchmarks.sides import ours
from benchmarks.suite import Case, run_case
from benchmarks.targets import ROWS
from redbeat.beat.turn import MOST_CHANGES
from redbeat.storage.reading import BATCH


def measure(url: str, workload: str, entries: int, repeat: int = 2) -> Metrics:
    return run_case(ours(), url, Case(workload, entries, repeat=repeat))


def test_the_main_figures_are_of_runs_that_were_all_sent(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "RUNS", 20)
    monkeypatch.setattr(core, "ROUNDS", 2)
    scene = core.Scene(redis_url, redis_url)
    for known in (False, True):
        rounds = scene.rounds(known)
        assert len(rounds) == 2
        assert all(each.beat > 0 < each.loop for each in rounds)
    assert scene.client.zcard("redbeat::schedule") == 40
    assert scene.client.llen("celery") == 20 + 20  # of the last beat, and of the last loop
    assert scene.idle()[1] == 1


# -- workloads ------------------------------------------------------------------------------------


def test_a_tick_that_sends_one_run_is_a_few_round_trips(redis_url: str) -> None:
    # That more runs share round trips is tested with a clock that stands still, in tests/beat.
    assert measure(redis_url, "tick", 1)["round_trips"] in range(1, 5)


@pytest.mark.long
def test_a_start_does_not_read_every_entry(redis_url: str) -> None:
    # A start writes in batches, and a machine that stalls interrupts a batch, often several times.
    # A start that reads every entry would take 2000 more round trips.
    few, many = (measure(redis_url, "startup", entries) for entries in (500, 500 + 4 * BATCH))

    for start in ("cold_round_trips", "warm_round_trips"):
        assert many[start] - few[start] <= 2 * 4 * BATCH / MOST_CHANGES + 20, start


# -- processes ------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_real_beat_sends_what_is_expected(redis_url: str) -> None:
    found = run_beat(ours(), redis_url, BeatCase(entries=2, seconds=1))

    assert found["share"] > 0
    assert {"late_p50", "late_p99"} <= found.keys()


@pytest.mark.long
def test_a_bare_loop_and_beats_are_measured_until_all_messages_arrived(redis_url: str) -> None:
    scene = Scene(redis_url, redis_url.replace("/0", "/1"), {"redbeat_lock_key": None})

    assert drain_bare(ours(), scene, scene, 5) > 0
    assert drain_beats(ours(), scene, scene, 5, beats=2) > 0


def test_the_proxy_delays_each_chunk(redis_url: str) -> None:
    port = int(redis_url.rpartition(":")[2].partition("/")[0])
    with delayed(port, 0.1) as proxy, redis.Redis(port=proxy) as client:
        assert client.set("a", "b") is True
        before = client.time()
        after = client.time()

    assert (after[0] - before[0]) + (after[1] - before[1]) / 1e6 >= 0.1


# -- numbers --------------------------------------------------------------------------------------


def test_regularity_is_measured_for_each_entry() -> None:
    messages = [Message(at, name, at - 0.25) for at in (1.0, 2.0, 4.0) for name in ("a", "b")]

    found = metrics_of(messages, BeatCase(entries=2, seconds=4))

    assert found == {"share": 0.75, "gap_p50": 1, "gap_p99": 2, "late_p50": 0.25, "late_p99": 0.25}


def test_a_doubled_run_does_not_replace_a_lost_run() -> None:
    runs = [(9.9, "a", 5.0), (10.0, "a", 0.1), (10.0, "a", 0.1), (11.5, "b", 0.3), (12.0, "a", 9.0)]

    found = paced_metrics(runs, pace=2, opens=10.0, closes=12.0)

    assert found == {"runs": 3, "lost": 2, "p50": 0.1, "p99": 0.3, "max": 0.3}


def test_a_target_is_reached_by_value_and_ratio() -> None:
    def both(ours: float, ratio: float) -> bool:
        return ours <= 1 and ratio >= 2

    assert target_row("a", "s", 1.0, 2.0, "x", "t", both).reached is True
    assert target_row("a", "s", 1.0, 1.9, "x", "t", both).reached is False
    assert target_row("a", "s", 1.1, 4.4, "x", "t", both).reached is False
    assert target_row("a", "s", 1.0, None, "x", "t", both).reached is None
    assert target_row("a", "s", 1.0, 2.0, "x").reached is None


# -- report ---------------------------------------------------------------------------------------


TARGET = Row("a real beat sends 5,000 due entries", 1.0, "s", 0.9, "bare", 0.9, "<= 1.10 x", True)
FINDINGS = {
    "entry": Finding(
        [
            Row(
                "scheduler time per due entry, 5,000 entries due (interval)",
                2e-5,
                "us",
                4e-4,
                "2.4.2",
            ),
            Row("time of Redis per due entry, 5,000 entries due (interval)", 1e-5, "us"),
        ],
        facts="CPython 1, redis-server 1.2",
    ),
    "beat": Finding([TARGET], remarks=["A remark."], facts="CPython 1, redis-server 1.2"),
    "growth": Finding([], [Series(DUE, "ours", [(10, 1e-5), (1000, 2e-5)])], quick=True),
    "peers": Finding(
        [],
        [
            Series(PEERS_DUE, "ours", [(1000.0, 1e-5)]),
            Series(PEERS_DUE, "other", [(1000.0, 1e-2)]),
            Series(PEERS_DUE, "never", []),
        ],
    ),
}


def test_the_page_has_tables_plots_and_remarks() -> None:
    rst = as_rst(FINDINGS)

    assert '"a real beat sends 5,000 due entries", "1.00 s", "0.90 s", "bare"\n' in rst
    assert f'"{FINDINGS["entry"].rows[0].what}", "20.0 µs", "400 µs"\n' in rst
    assert ".. image:: _static/benchmarks/due.svg" in rst
    assert "A remark." in rst
    assert "--quick" in rst
    assert rst.count("redis-server 1.2") == 1


def test_the_docs_are_written_from_the_kept_results(tmp_path: Path) -> None:
    results = tmp_path / "rows.json"
    for name, finding in FINDINGS.items():
        Store(results).keep(name, finding)

    docs = tmp_path / "not" / "there"
    assert main(["--report", "--results", str(results), "--docs", str(docs)]) == 0

    images = {path.name for path in (docs / "_static/benchmarks").iterdir()}
    assert images == {"due.svg", "peers-due.svg", "peers-due-bars.svg"}
    assert all(f"benchmarks/{name}" in as_rst(FINDINGS) for name in images)
    page, goals, *_ = write_docs(FINDINGS, docs)
    assert taken(page, "benchmarks-results") == as_rst(FINDINGS)
    assert taken(page, "scale-results") == arithmetic(FINDINGS)
    assert goals.read_text(encoding="utf-8") == targets(FINDINGS)


def test_results_replace_those_of_the_same_name_in_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.rst"
    page.write_text("before\n\n.. begin a\n\nold\n\n.. end a\n\nafter\n", encoding="utf-8")
    put(page, "a", "new\n")
    put(page, "b", "other\n")
    assert page.read_text(encoding="utf-8") == (
        "before\n\n.. begin a\n\nnew\n\n.. end a\n\nafter\n.. begin b\n\nother\n\n.. end b\n"
    )
    assert (taken(page, "a"), taken(page, "b")) == ("new\n", "other\n")


def test_a_measurement_is_kept_and_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    results = tmp_path / "rows.json"
    monkeypatch.setitem(MEASUREMENTS, "entry", lambda _bench: Finding([TARGET]))

    assert main(["--quick", "--only", "entry", "--results", str(results)]) == 0

    kept = Store(results).load()["entry"]
    assert (kept.rows, kept.quick) == ([TARGET], True)
    assert "-server " in kept.facts
    assert TARGET.what in capsys.readouterr().out


def test_a_measurement_that_fails_is_reported_and_the_others_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_bench: object) -> Finding:
        raise RuntimeError("no such thing")

    results = tmp_path / "rows.json"
    monkeypatch.setitem(MEASUREMENTS, "entry", broken)
    monkeypatch.setitem(MEASUREMENTS, "beat", lambda _bench: Finding([TARGET]))

    assert main(["--only", "entry", "--only", "beat", "--results", str(results)]) == 1

    assert list(Store(results).load()) == ["beat"]
    assert "no such thing" in capsys.readouterr().err


def test_every_measurement_is_on_the_page() -> None:
    found = {name for section in SECTIONS for name in section.names}
    assert found == MEASUREMENTS.keys() > ROWS.keys()


def test_names_with_numbers_spread_evenly(capsys: pytest.CaptureFixture[str]) -> None:
    """The numbers of docs/policies.rst come from 100 sets of each kind of name."""
    spread.main(["2"])
    lines = capsys.readouterr().out.splitlines()[1:]
    assert [line.split()[0] for line in lines] == list(spread.KINDS)
    assert lines[0].endswith("0 of 2")
    assert spread.ratio(spread.KINDS["tenant-0042:report"](7)) <= 1.2


def test_the_table_of_the_commands_extends_to_ten_million() -> None:
    """The cost grows with the entries; noise that makes it smaller is left out."""
    costs = {
        "1000000": {"list": Cost(1, 2.0, 1.0, 2048, 0.002), "idle tick": Cost(1, 1e-4, 3e-5, 0, 0)},
        "2000000": {"list": Cost(1, 3.0, 1.5, 1024, 0.009), "idle tick": Cost(1, 9e-5, 3e-5, 0, 0)},
    }
    *_, header, first, second = table(costs).splitlines()
    assert '"1,000,000", "2,000,000", "10,000,000, computed"' in header
    assert first.strip() == ('"list", "2.0 + 1.00 s", "3.0 + 1.50 s", "11.0 + 5.50 s", "2 MiB"')
    assert second.strip() == ('"idle tick", "0.10 + 0.03 ms", "0.09 + 0.03 ms", "", ""')
