"""Tests of the scheduler in the process of the test, with a real Redis server."""
