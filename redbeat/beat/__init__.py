"""Implements a beat, which in each tick renews the lock, claims due entries and sends runs."""
