"""The third edition of the beat, under construction: users can't reach it yet."""
