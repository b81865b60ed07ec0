"""The dashboard that ``celery -A proj redbeat web`` serves, built with Flask and Jinja.

The dashboard needs the extra ``web``. Only the command ``redbeat web`` imports it.
"""
