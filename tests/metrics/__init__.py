"""What beats count, what they serve over HTTP, and whether probes get correct answers."""
