"""Runs the fuzzer: ``python -m tests.fuzz --help``."""

from __future__ import annotations

import sys

from tests.fuzz.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
