"""Rules about wall clocks and dates, and the instants they mean: pure arithmetic, no Redis."""
