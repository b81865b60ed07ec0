"""Every Python example in the manual is run, with a Redis."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, Block, blocks
from tests.unit.certificates import write_certificates

#: Run by ``test_guides.py``, as files of a project.
GUIDES = {"README.rst", "docs/quickstart.rst"}

COMMON = """
import os
import redis
from celery import Celery
from redbeat import RedBeatSchedulerEntry
app = Celery("proj", broker="memory://")
app.conf.redbeat_redis_url = os.environ["REDIS_URL"]
app.conf.beat_schedule = {}
"""
#: What a page supposes that its reader has; the rest is on the page.
BEFORE = {
    "docs/configuration.rst": "class TokenProvider(redis.CredentialProvider): pass",
    "docs/deployment/cluster.rst": "app.conf.redbeat_key_prefix = '{redbeat}:'",
    "docs/deployment/acl.rst": "read_secret = str.upper",
    "docs/deployment/tls.rst": "os.environ['BEAT_KEY_PASSWORD'] = 'key-secret'",
    "docs/schedules.rst": "schedule = 60",
    "docs/tasks.rst": (
        "import time, redbeat.worker\ntimestamp = time.time\nredbeat.worker.enable(app)"
    ),
}


def pages() -> dict[str, list[Block]]:
    """Return the examples of each page that has some."""
    found: dict[str, list[Block]] = {}
    for block in blocks("python"):
        if block.page not in GUIDES:
            found.setdefault(block.page, []).append(block)
    return found


@pytest.mark.parametrize("page", pages())
def test_the_examples_of_a_page_run(page: str, redis_url: str, tmp_path: Path) -> None:
    certificates = write_certificates(tmp_path)
    files = {
        "/etc/ssl/redis-ca.pem": certificates.authority,
        "/etc/ssl/beat.pem": certificates.certificate,
        "/etc/ssl/beat.key": certificates.encrypted_key if "tls" in page else certificates.key,
    }
    told = []
    for block in pages()[page]:
        text = block.text
        for name, path in files.items():
            text = text.replace(name, path)
        told.append((block.page, block.line + 1, text))
    code = json.dumps({"before": COMMON + BEFORE.get(page, ""), "blocks": told})
    done = subprocess.run(
        [sys.executable, "-m", "tests.docs.interpreter"],
        cwd=ROOT,
        env={**os.environ, "REDIS_URL": redis_url},
        input=code,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
