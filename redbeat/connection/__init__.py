"""Redis clients: from settings and URLs to a client for the topology, with retries."""
