"""The names of the lists in which the project notes its runs."""

LEDGER = "project-ledger"

#: When runs begin and end, of tasks that take their time.
SPANS = "project-spans"
