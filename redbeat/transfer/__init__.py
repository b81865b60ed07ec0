"""Export and import of entries, and readers of other schedulers' data."""
