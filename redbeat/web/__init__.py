"""The page of ``celery -A proj redbeat web``: Flask, Jinja templates, one style sheet, one script.

Needs the extra ``web``. Nothing else of the package imports it.
"""
