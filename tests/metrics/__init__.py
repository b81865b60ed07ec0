"""What beats count, what is served, and whether probes are told the truth."""
