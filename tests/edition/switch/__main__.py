"""``python -m tests.edition.switch [arguments of pytest]``."""

import sys

from . import run_tests

if __name__ == "__main__":
    sys.exit(run_tests(sys.argv[1:]))
