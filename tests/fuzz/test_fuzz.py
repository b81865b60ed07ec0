"""Tests that run the kept cases, some new cases of each surface, and planted defects.

``python -m tests.fuzz --cases 1000000`` runs many cases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from redbeat import RedBeatSchedulerEntry
from redbeat.beat.beat import Beat
from redbeat.beat.turn import Turn
from redbeat.beat.wakeup import WakeUp
from redbeat.cli import import_export
from redbeat.errors import InvalidEntryError
from redbeat.management.schedule import Schedule
from redbeat.web import pages
from tests.fuzz import command
from tests.fuzz.fuzzer import (
    Chunk,
    Finding,
    Result,
    case_of,
    load,
    plan,
    run,
    tried,
)
from tests.fuzz.mutator import Mutator
from tests.fuzz.seeds import SEEDS, Seed
from tests.fuzz.surfaces import SURFACES, World
from tests.samples import one_in
from tests.servers import RedisServer

#: Number of new cases of each surface in the short run.
CASES = {"stored": 45, "texts": 200, "pages": 40, "files": 20, "messages": 50, "own keys": 15}


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """Yield a world with its own server, because a batch empties the server."""
    with RedisServer() as server:
        world = World(server.url)
        yield world
        world.close()


#: Kept cases and surfaces with defects that other changes mend; remove those that pass.
PENDING: set[str] = set()


def parameter(value: Any, title: str, is_long: int = 0) -> Any:
    """Return a parameter of a test, which may fail while the title is in ``PENDING``."""
    xfail = pytest.mark.xfail(title in PENDING, strict=False, reason="mended elsewhere")
    return pytest.param(value, id=title, marks=[xfail, *[pytest.mark.long] * is_long])


@pytest.mark.parametrize(
    "seed", [parameter(seed, seed.title, min(number % 3, 1)) for number, seed in enumerate(SEEDS)]
)
def test_a_case_that_found_a_defect(world: World, seed: Seed) -> None:
    world.thorough = True
    assert tried(world, SURFACES[seed.surface], [seed.case]) == []


@pytest.mark.parametrize("name", [parameter(name, name) for name in CASES])
def test_new_cases(world: World, name: str) -> None:
    result = run(world, Chunk(name, 7, 0, CASES[name]))
    assert not result.findings, "\n".join(map(str, result.findings))


def fail(*_args: Any, **_options: Any) -> Any:
    """Fail as a defect does."""
    raise ZeroDivisionError("planted")


def plant_in_decoder(patch: pytest.MonkeyPatch) -> None:
    """Let the decoder fail for a word that only some texts contain."""
    decode = RedBeatSchedulerEntry.from_definition

    def defect(app: Any, definition: str, policy: str = "") -> Any:
        return fail() if "monthday" in definition else decode(app, definition, policy)

    patch.setattr(RedBeatSchedulerEntry, "from_definition", defect)


def plant_in_importer(patch: pytest.MonkeyPatch) -> None:
    """Let one of the importers fail."""
    patch.setitem(import_export.READERS, "crontab", fail)


PLANTS: dict[str, tuple[str, Callable[[pytest.MonkeyPatch], None]]] = {
    "a decoder": ("texts", plant_in_decoder),
    "an importer": ("files", plant_in_importer),
    "a tick": ("stored", lambda patch: patch.setattr(Beat, "tick", fail)),
    "a message": ("messages", lambda patch: patch.setattr(WakeUp, "wait", fail)),
    "a page": ("pages", lambda patch: patch.setattr(pages, "entry_name", fail)),
    "a command": ("own keys", lambda patch: patch.setattr(Schedule, "status", fail)),
}


@pytest.mark.parametrize("plant", one_in(3, PLANTS))
def test_a_planted_defect_is_found(
    world: World, plant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The finding has the seed and the number of a case, with which the defect appears again."""
    surface, apply = PLANTS[plant]
    apply(monkeypatch)
    count = {"texts": 40, "pages": 40, "files": 20}.get(surface, 8)
    found = [
        finding
        for finding in run(world, Chunk(surface, 7, 0, count), most=4).findings
        if "ZeroDivisionError" in finding.report
    ]
    assert found
    case = case_of(SURFACES[surface], found[0].seed, found[0].number)
    assert any("planted" in line for line in tried(world, SURFACES[surface], [case]))
    assert f"--seed 7 --replay '{surface}:{found[0].number}'" in str(found[0])
    monkeypatch.undo()
    assert not any("planted" in line for line in tried(world, SURFACES[surface], [case]))


def test_a_tick_that_does_not_end_is_found(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A beat handles the errors of a tick, but not the interruption of a batch."""
    monkeypatch.setattr(Turn, "look", lambda *_: Event().wait())
    assert "took more than" in tried(world, SURFACES["stored"], [], limit=2)[-1]


def test_equal_seeds_give_equal_cases() -> None:
    for surface in SURFACES.values():
        assert repr(case_of(surface, 1, 5)) == repr(case_of(surface, 1, 5))
        assert len({repr(case_of(surface, seed, 5)) for seed in range(20)}) > 10


def test_the_plan_has_each_case_once() -> None:
    chunks = list(plan(10_000, 3))
    numbers = [
        (chunk.surface, number)
        for chunk in chunks
        for number in range(chunk.first, chunk.first + chunk.cases)
    ]
    assert len(set(numbers)) == len(numbers) >= 10_000
    assert {chunk.surface for chunk in chunks} == set(SURFACES)


def test_results_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "results"
    assert load(file) == []
    result = Result(Chunk("texts", 1, 0, 2), 0.5, [Finding("wrong", "texts", 1, 0, "b'\\xff'")])
    file.write_text(result.dump() + "\n" + Result(Chunk("texts", 1, 2, 2), 0.1).dump() + "\n")
    assert load(file)[0] == result
    assert [loaded.chunk.first for loaded in load(file)] == [0, 2]


@pytest.mark.long
def test_the_command_resumes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--cases", "400", "--surface", "texts", "--jobs", "1"]
    arguments += ["--results", str(tmp_path / "results")]
    assert command.main(arguments) == 0
    assert "\n400 cases in" in capsys.readouterr().out
    assert command.main(arguments) == 0
    assert "\n0 cases in" in capsys.readouterr().out
    assert command.main(["--replay", "texts:17"]) == 0
    assert "everything held" in capsys.readouterr().out


def test_no_name_reaches_a_key_of_redbeat(world: World) -> None:
    mutator, client = Mutator("names"), world.client
    client.flushall()
    RedBeatSchedulerEntry("good", "t", 60, app=world.app).save()
    before = {key: client.dump(key) for key in client.scan_iter() if key != b"redbeat::schedule"}
    for _ in range(100):
        name = mutator.choice((mutator.text(), mutator.noise(), mutator.scalar()))
        try:
            entry = RedBeatSchedulerEntry(name, "t", 60, app=world.app).save()
        except InvalidEntryError:
            continue
        assert entry.key.startswith("redbeat:")
        before.pop(entry.key.encode("utf-8", "surrogateescape"), None)
    assert {key: client.dump(key) for key in before} == before
