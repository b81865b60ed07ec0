"""Schedules that a real beat of RedBeat 2.4.2 left in Redis go on here, and the other way."""
