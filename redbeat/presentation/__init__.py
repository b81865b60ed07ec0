"""Rules, states and times as people write and read them; for the command line and the page."""
