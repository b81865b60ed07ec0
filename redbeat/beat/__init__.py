"""The beat: each tick renews the lock, claims due entries, and publishes and records their runs."""
