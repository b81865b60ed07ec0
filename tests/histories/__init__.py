"""Tests that this package continues RedBeat 2.4.2 schedules, and 2.4.2 this package's schedules."""
