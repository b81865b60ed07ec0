"""The scheduler in process: real Redis, recorded messages."""
