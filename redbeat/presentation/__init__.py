"""Schedules, entries and times as text, for the command line and the dashboard."""
