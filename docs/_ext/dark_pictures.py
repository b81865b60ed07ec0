"""Shows ``name-dark.png`` instead of ``name.png`` in the dark theme, where there is such a file.

The pages name only the light picture, because a repository page would show both.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from docutils.nodes import document, image
from sphinx.application import Sphinx


def add_dark_pictures(app: Sphinx, tree: document) -> None:
    """Put the dark picture after each light one; classes of the theme hide one of the two."""
    here = Path(app.env.doc2path(app.env.docname)).parent
    for light in list(tree.findall(image)):
        uri = light["uri"].removesuffix(".png") + "-dark.png"
        if light["uri"].endswith(".png") and (here / uri).is_file():
            dark = light.deepcopy()
            dark["uri"] = uri
            light["classes"].append("only-light")
            dark["classes"].append("only-dark")
            light.parent.insert(light.parent.index(light) + 1, dark)


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to the events of the build; Sphinx calls this."""
    app.connect("doctree-read", add_dark_pictures, priority=100)  # before Sphinx collects images
    return {"parallel_read_safe": True}
