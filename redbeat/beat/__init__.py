"""Implements a beat, which in each tick renews the lock, looks at what is due and sends runs."""
