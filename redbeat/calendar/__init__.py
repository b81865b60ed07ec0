"""Times of recurrence rules, crontabs and solar events, and conversion between time zones."""
