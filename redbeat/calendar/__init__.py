"""Rules in wall-clock time, and their instants: pure arithmetic, without Redis."""
