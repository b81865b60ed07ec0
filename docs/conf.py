"""How Sphinx builds the documentation."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent)]

project = "RedBeat"
author = "the RedBeat developers"
copyright = author
release = "3.0.0.dev0"
version = "3.0"

extensions = ["redbeat_settings"]
exclude_patterns = ["_build"]
nitpicky = True
html_theme = "furo"
html_title = f"RedBeat {release}"
