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

extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon", "redbeat_settings"]
exclude_patterns = ["_build"]
autodoc_member_order = "bysource"
napoleon_use_ivar = True
# Every reference must lead somewhere, but for those into other projects: their sites would have to
# be asked at each build.
nitpicky = True
nitpick_ignore_regex = [("py:.*", r"(?!redbeat\b).*"), ("py:class", r"redbeat\.[\w.]+\.(Self|T)")]
html_theme = "furo"
html_title = f"RedBeat {release}"
