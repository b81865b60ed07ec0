"""A beat works with the patches that Sentry and OpenTelemetry apply to Celery.

They patch Celery's classes permanently, so each test runs in its own process.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

pytestmark = pytest.mark.standalone

#: A project with three due entries, one of which has its own time zone.
PROJECT = """
import json
import sys
from datetime import datetime, timezone

from celery import Celery
from celery.schedules import crontab

app = Celery("proj", broker=sys.argv[1])
app.conf.update(redbeat_redis_url=sys.argv[1], result_expires=None, timezone="UTC")


@app.task(name="proj.note")
def note():
    pass


def dispatched():
    \"\"\"Save the entries, let a beat tick twice, and return the messages by entry.\"\"\"
    from redbeat import RedBeatScheduler, RedBeatSchedulerEntry

    long_ago = datetime(2026, 1, 1, tzinfo=timezone.utc)
    for name, when, more in (
        ("zoned", crontab(30, 9), {"timezone": "Europe/Berlin"}),
        ("plain", crontab("*/5"), {}),
        ("interval", 3600, {}),
    ):
        entry = RedBeatSchedulerEntry(name, "proj.note", when, app=app, **more)
        entry.last_run_at = long_ago
        entry.save()
    scheduler = RedBeatScheduler(app)
    scheduler.tick()
    scheduler.tick()
    scheduler.close()
    found = []
    with app.connection_for_read() as connection:
        while message := connection.default_channel.basic_get("celery", no_ack=True):
            found.append(message.headers)
    return found


"""

OPENTELEMETRY = """
from opentelemetry import trace
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

spans = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(spans))
trace.set_tracer_provider(provider)
CeleryInstrumentor().instrument()
messages = dispatched()
finished = [
    [f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}", span.name, span.kind.name]
    for span in spans.get_finished_spans()
]
print(json.dumps({"spans": finished, "messages": messages}))
"""


def run(program: str, url: str) -> Any:
    """Run a program, and return the last line of its output."""
    command = [sys.executable, "-c", PROJECT + program, url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_opentelemetry_traces_each_message_once(redis_url: str) -> None:
    found = run(OPENTELEMETRY, redis_url)
    names = [headers["periodic_task_name"] for headers in found["messages"]]
    assert sorted(names) == ["interval", "plain", "zoned"]
    published = {
        f"00-{trace_id}-{span_id}-01"
        for trace_id, span_id, name, kind in found["spans"]
        if (name, kind) == ("apply_async/proj.note", "PRODUCER")
    }
    assert len(published) == len(found["spans"]) == 3
    assert {headers["traceparent"][:53] for headers in found["messages"]} == {
        parent[:53] for parent in published
    }
