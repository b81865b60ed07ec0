"""Links to files that work here and on a repository page: ```title <page.rst#label>`__``."""

from __future__ import annotations

import posixpath
from pathlib import Path
from typing import Any

from docutils.nodes import document, inline, reference
from sphinx.addnodes import download_reference, pending_xref
from sphinx.application import Sphinx
from sphinx.util import logging

logger = logging.getLogger(__name__)


def link_to_pages(app: Sphinx, tree: document) -> None:
    """Let Sphinx resolve each link to a file of the manual; one that leads nowhere is a warning."""
    here = app.env.docname
    for link in list(tree.findall(reference)):
        path, _, label = link.get("refuri", "").partition("#")
        if not path.endswith(".rst") or "://" in path:
            continue
        page = posixpath.normpath(posixpath.join(posixpath.dirname(here), path))
        if page not in {f"{name}.rst" for name in app.env.found_docs}:
            logger.warning("there is no page %s", page, location=link)
        kind, target = ("ref", label) if label else ("doc", "/" + page.removesuffix(".rst"))
        found = pending_xref("", refdomain="std", reftype=kind, reftarget=target, refdoc=here)
        found.update_all_atts({"refexplicit": True, "refwarn": True})
        found.source, found.line = link.source, link.line
        found += inline("", "", *link.children, classes=["std", f"std-{kind}"])
        link.replace_self(found)


def offer_files(app: Sphinx, tree: document) -> None:
    """Let the built manual offer each other file that a page links to, such as ``alerts.yaml``."""
    here = Path(app.env.doc2path(app.env.docname)).parent
    for link in list(tree.findall(reference)):
        path = link.get("refuri", "")
        if path.endswith(".rst") or "://" in path or not (here / path).is_file():
            continue
        offered = download_reference("", "", *link.children, reftarget=path)
        offered.source, offered.line = link.source, link.line
        link.replace_self(offered)


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to the events of the build; Sphinx calls this."""
    app.connect("doctree-read", link_to_pages)
    app.connect("doctree-read", offer_files, priority=100)  # before Sphinx collects downloads
    return {"parallel_read_safe": True}
