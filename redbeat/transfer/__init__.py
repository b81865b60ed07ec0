"""Entries on their way out of a schedule, into one, and from other schedulers to this one."""
