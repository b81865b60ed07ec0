"""How Sphinx builds the documentation."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent)]

project = "RedBeat"
author = "the RedBeat developers"
copyright = author
release = "3.0.0.dev0"
version = "3.0"

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "redbeat_settings",
]
exclude_patterns = ["_build"]
autodoc_member_order = "bysource"
napoleon_use_ivar = True
# Every reference to a name of this package must resolve. References into other projects link only
# where the manual is published: inventories need a network, which a build elsewhere may not have.
nitpicky = True
nitpick_ignore_regex = [
    ("py:.*", r"(celery|collections|flask|dateutil|datetime|kombu|redis|typing)\..*"),
    ("py:class", r"BaseSchedule|datetime|timedelta"),
    ("py:class", r"redbeat\.[\w.]+\.(Self|T)"),
    # Names for type checkers only, in annotations that autodoc prints.
    ("py:class", r"EntryArguments|EntryState|RunState|Span|TypedSignal|Receiver|Dispatched|Ended"),
    ("py:class", r"Failed|Finished|FoundRedis|Lost(Lock|Redis|Schedule)|Missed|Quarantined|Synced"),
]
if os.environ.get("READTHEDOCS"):
    extensions.append("sphinx.ext.intersphinx")
    intersphinx_mapping = {
        "python": ("https://docs.python.org/3", None),
        "celery": ("https://docs.celeryq.dev/en/stable", None),
        "redis": ("https://redis.readthedocs.io/en/stable", None),
    }
html_theme = "furo"
html_title = f"RedBeat {release}"


def resolve_short_name(app: Any, env: Any, node: Any, contnode: Any) -> Any:
    """Return the link of a name without its module, such as ``InvalidEntryError``, or None."""
    if node.get("refdomain") != "py" or not node.get("reftype"):
        return None
    node["refspecific"] = True
    domain = env.domains["py"]
    kind, target = node["reftype"], node["reftarget"]
    if len(domain.find_obj(env, None, None, target, kind, 1)) != 1:
        return None
    return domain.resolve_xref(env, node["refdoc"], app.builder, kind, target, node, contnode)


def setup(app: Any) -> None:
    """Connect to the events of the build; Sphinx calls this."""
    app.connect("missing-reference", resolve_short_name)
