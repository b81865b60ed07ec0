"""Tests that run every Python example of the manual with a Redis."""

from __future__ import annotations

import multiprocessing
from dataclasses import replace
from multiprocessing.context import BaseContext
from pathlib import Path

import pytest

from tests.certificates import KEY_PASSWORD, CertificateFiles, write_certificates
from tests.docs.blocks import Block, blocks
from tests.docs.interpreter import run_page

#: ``test_home.py`` runs the examples of these pages as files of a project.
GUIDES = {"README.rst", "docs/quickstart.rst"}
#: ``test_howto.py`` follows these pages, which have files with captions.
PROJECTS = {block.page for block in blocks("python") if block.caption}

COMMON = """
import os
import sys
from types import ModuleType
import redis
from celery import Celery
from redbeat import RedBeatSchedulerEntry
app = Celery("proj", broker="memory://")
app.conf.redbeat_redis_url = os.environ["REDIS_URL"]
app.conf.beat_schedule = {}
sys.modules["proj"] = ModuleType("proj")
sys.modules["proj"].app = app
"""
#: The examples of these pages import all that they use.
COMPLETE = "docs/howto/"
FORGET = "\ndel app, Celery, ModuleType, RedBeatSchedulerEntry, os, redis, sys\n"
#: Code that a page expects to exist before its first example.
BEFORE = {
    "docs/configuration.rst": "class TokenProvider(redis.CredentialProvider): pass",
    "docs/deployment/cluster.rst": "app.conf.redbeat_key_prefix = '{redbeat}:'",
    "docs/deployment/acl.rst": "read_secret = str.upper",
    "docs/schedules.rst": "schedule = 60",
    "docs/tasks.rst": (
        "import time, redbeat.worker\ntimestamp = time.time\nredbeat.worker.enable(app)"
    ),
}
#: The environment variables that the examples of a page read.
ENVIRONMENT = {
    "docs/deployment/tls.rst": {"BEAT_KEY_PASSWORD": KEY_PASSWORD},
}


def pages() -> dict[str, list[Block]]:
    """Return the Python examples by page."""
    found: dict[str, list[Block]] = {}
    for block in blocks("python"):
        if block.page not in GUIDES and block.page not in PROJECTS:
            found.setdefault(block.page, []).append(block)
    return found


def with_files(block: Block, certificates: CertificateFiles) -> Block:
    """Return an example whose certificate paths are replaced by those of existing files."""
    encrypted = "ssl_password" in block.text
    files = {
        "/etc/ssl/redis-ca.pem": certificates.authority,
        "/etc/ssl/beat.pem": certificates.certificate,
        "/etc/ssl/beat.key": certificates.encrypted_key if encrypted else certificates.key,
    }
    text = block.text
    for name, path in files.items():
        text = text.replace(name, path)
    return replace(block, text=text)


@pytest.fixture(scope="module")
def processes() -> BaseContext:
    """Return a multiprocessing context whose processes start with the modules imported."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.docs.interpreter"])
    return context


@pytest.mark.parametrize("page", pages())
def test_the_examples_of_a_page_run(
    page: str, redis_url: str, tmp_path: Path, processes: BaseContext
) -> None:
    certificates = write_certificates(tmp_path)
    written = [with_files(block, certificates) for block in pages()[page]]
    environment = {"REDIS_URL": redis_url, **ENVIRONMENT.get(page, {})}
    before = COMMON + (FORGET if page.startswith(COMPLETE) else BEFORE.get(page, ""))
    told = (environment, before, written)
    with processes.Pool(1) as pool:
        assert pool.apply_async(run_page, told).get(timeout=60) == ""
