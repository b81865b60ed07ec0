"""Tests of the counters of beats, the HTTP metrics, and the health probes."""
