"""Recurrence rules, time zones and the sun: pure computations without Redis."""
