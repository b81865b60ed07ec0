"""Stored names and tasks cannot forge or colour lines in the log of a real beat."""

from __future__ import annotations

import json
import re
from functools import partial
from typing import Any

import pytest
from celery import Celery

from redbeat import Schedule
from tests.acceptance.processes import Process, Project
from tests.cli.commands import run_command
from tests.waiting import wait_until

#: The beginning of a line that a beat writes: of its log, of a traceback, or of its banner.
OF_A_BEAT = re.compile(
    r"\[[-0-9 :,]{23}: (DEBUG|INFO|WARNING|ERROR)/MainProcess\] |  |Traceback \(most recent|$"
    r"|celery beat v|__    -   |LocalTime|Configuration|[\w.]+(Error|SerializerNotInstalled): "
    r"|(The above|During handling of the above) exception"
)
#: Characters that forge, colour or hide text, and two that UTF-8 cannot encode.
BAD = "\n\r\x1b\x9b\u200b\u2028\u2029\u202e\ufeff\ud800\udcff"

FORGED = "[2026-01-01 00:00:00,000: INFO/MainProcess] FORGED"


def put(project: Project, name: str, text: str, due: float = 0) -> None:
    """Store an entry by raw commands."""
    key: Any = f"redbeat:{name}".encode("utf-8", "surrogatepass")
    project.client.hset(key, "definition", text)
    project.client.zadd("redbeat::schedule", {key: due})


def definition(name: str, **more: Any) -> str:
    """Return the definition of an hourly entry."""
    schedule = {"__type__": "interval", "every": 3600.0, "relative": False}
    return json.dumps({"name": name, "task": f"task of {name}", "schedule": schedule, **more})


def has(beat: Process, text: str, count: int) -> bool:
    """Return whether the output of a beat has a text at least ``count`` times."""
    return beat.output().count(text) >= count


def test_no_line_is_forged(project: Project) -> None:
    """The lines about sent, triggered, failed, missing and quarantined entries are safe."""
    app = Celery(broker=project.url, set_as_current=False)
    encodable = [char for char in BAD if not "\ud800" <= char <= "\udfff"]
    gone: dict[str, float] = {}
    for char in encodable:
        name = f"{{}} {char}{FORGED}{char}[31m".format
        put(project, name("sent"), definition(name("sent")))
        options = {"serializer": name("serializer")}
        put(project, name("failed"), definition(name("failed"), options=options))
        put(project, name("triggered"), definition(name("triggered")), 4e9)
        Schedule(app)[name("triggered")].trigger()
        gone[f"redbeat:{name('gone')}"] = 0.0
    for char in BAD:
        name = f"{{}} {char}{FORGED}{char}[31m".format
        put(project, name("unreadable"), '{"name": "\x1b')
        put(project, name("misnamed"), definition(name("another") * 50))
    put(project, "long\n" * 1000, "{")
    project.client.zadd("redbeat::schedule", gone)

    beat = project.beat()
    counts = {
        "Sending due task sent ": len(encodable),
        "Sending triggered task triggered ": len(encodable),
        "Could not send redbeat:failed ": len(encodable),
        "its hash is gone": len(encodable),
        "is quarantined: ": 2 * len(BAD) + 1,
    }
    for text, count in counts.items():
        wait_until(partial(has, beat, text, count), 30, text)
    beat.stop()

    output = beat.log.read_bytes().decode()
    lines = output.split("\n")
    assert not set(output) & set(BAD.replace("\n", ""))
    assert not [line for line in lines if line.startswith(FORGED) or not OF_A_BEAT.match(line)]
    assert max(map(len, lines)) < 2500
    app.close()


@pytest.mark.standalone
def test_no_command_prints_a_control_character(app: Celery, redis_client: Any) -> None:
    """Names, tasks, arguments, reasons and tokens are escaped in every command's output."""
    bad = BAD.replace("\ud800", "").replace("\udcff", "")
    for char in bad:
        name = f"n{char}x"
        texts = {"args": [char], "kwargs": {"k": char}, "options": {"queue": char}}
        pause = {"pause": {"since": 1.0, "reason": char, "by": char}}
        fields = {"definition": definition(name, **texts), "policy": json.dumps(pause)}
        redis_client.hset(f"redbeat:{name}", mapping=fields)
        redis_client.hset(f"redbeat:q{char}", "definition", '{"name": "')
        redis_client.zadd("redbeat::schedule", {f"redbeat:{name}": -1, f"redbeat:q{char}": -1})
        note = json.dumps({"reason": char, "since": 1, "digest": ""})
        redis_client.hset(".redbeat::quarantine", f"redbeat:q{char}", note)
        redis_client.zadd(".redbeat::beats", {f"beat{char}@host 1 x": 4e9})
    commands: list[tuple[str, ...]] = [
        ("list",),
        ("status",),
        ("doctor",),
        ("upcoming",),
        ("export",),
    ]
    names = [f"{start}{char}x" for char in bad for start in "nz"]
    commands += [(word, name) for word in ("show", "pause") for name in names]
    for command in commands:
        ran = run_command(app, *command)
        printed = (ran.out + ran.err).replace("\n", "")
        assert not set(printed) & set(BAD), command
        assert ran.out + ran.err
