"""The dashboard that ``celery -A proj redbeat web`` serves, built with Flask and Jinja.

The dashboard needs the extra ``web``. RedBeat imports this package only for the command
``redbeat web``.
"""
