"""The schedule in Redis, as texts and numbers: all commands and scripts that use it."""
