"""Tests of programs that use the package as public projects do.

The programs also run with ``celery-redbeat`` 2.4.2, so the files here import only names that 2.4.2
has. ``python -m tests.wild`` runs them with both versions.
"""
