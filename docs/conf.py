"""How Sphinx builds the documentation."""

from __future__ import annotations

project = "RedBeat"
author = "the RedBeat developers"
copyright = author
release = "3.0.0.dev0"
version = "3.0"

extensions: list[str] = []
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"RedBeat {release}"
