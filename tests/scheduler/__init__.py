"""The scheduler in process: its ticks run against a real Redis, and its messages are recorded
instead of sent.
"""
