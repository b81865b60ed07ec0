"""Metrics for Prometheus and health checks for Kubernetes.

``counters`` and ``health`` hold the numbers and the state of one beat. ``snapshot`` reads the
numbers of all beats from Redis. ``families`` converts both to Prometheus metrics, and ``server``
serves them over HTTP. ``families`` and ``server`` need ``prometheus_client``; ``extra`` imports
them on demand.
"""
