"""The scheduler in process: ticks against a real Redis, messages recorded instead of sent."""
