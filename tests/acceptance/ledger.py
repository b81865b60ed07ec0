"""The names of the Redis lists in which the project records its runs."""

LEDGER = "project-ledger"

#: The Redis list with the beginnings and ends of long runs.
SPANS = "project-spans"
