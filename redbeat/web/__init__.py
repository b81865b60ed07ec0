"""The dashboard that ``celery -A proj redbeat web`` serves, built with Flask and Jinja.

It needs the extra ``web``, so only that command and ``redbeat.web.django`` import this package.
"""
