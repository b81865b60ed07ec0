"""Redis clients: built from settings and URLs for each topology, with retries."""
