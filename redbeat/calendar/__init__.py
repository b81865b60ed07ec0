"""Computes the times of recurrence rules, crontabs and the sun, and converts between time zones."""
