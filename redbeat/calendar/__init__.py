"""Compute the times of recurrence rules, crontabs and solar events, and convert time zones."""
