"""Compute times of recurrence rules, crontabs and solar events; convert between time zones."""
