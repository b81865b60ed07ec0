"""Metrics for Prometheus and health checks for Kubernetes.

``counters`` contains the counters of one beat, and ``health`` contains the health of the beat.
``snapshot`` reads the counters of all beats from Redis. ``families`` converts counters, health and
snapshots to Prometheus metrics, and ``server`` serves the metrics over HTTP. The modules
``families`` and ``server`` need ``prometheus_client``; ``extra`` imports these two modules on
demand.
"""
