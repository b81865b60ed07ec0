"""Programs that use the package as public projects do; they also run with ``celery-redbeat`` 2.4.2.

Files here import only names that 2.4.2 has. ``python -m tests.wild`` runs them with both versions.
"""
