"""Where the manual is; ``setup.py`` reads this file too, so it imports nothing of the package."""

from __future__ import annotations

#: The address of a page, with its name such as ``deployment/acl`` in place of the braces.
MANUAL = "https://github.com/sibson/redbeat/blob/HEAD/docs/{}.rst"
