"""What beats count, and how Prometheus and Kubernetes get to see it.

``counters`` and ``pulse`` are what a beat knows of itself; ``snapshot`` is what Redis knows.
``families`` and ``collectors`` say it in the words of Prometheus, ``server`` and ``serving`` serve
it. These four need ``prometheus_client``; ``extra`` imports them where they are wanted.
"""
