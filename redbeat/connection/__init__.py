"""Redis clients that retry commands, for a single server, Sentinel or Cluster."""
