"""The parts of an entry: what is stored of it, when it is due, and what can be done with it."""
