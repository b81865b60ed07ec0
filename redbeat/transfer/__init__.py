"""Export and import of entries, and readers for the data of other schedulers."""
