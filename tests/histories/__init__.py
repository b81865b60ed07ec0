"""This package continues schedules that a beat of RedBeat 2.4.2 left in Redis, and vice versa."""
