"""The schedule in Redis, as text and numbers: every command and script that touches it."""
