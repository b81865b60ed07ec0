"""The name of the list in which the project notes its runs."""

LEDGER = "project-ledger"
