"""Conversion of Python objects to JSON and back. Its public interface is :mod:`redbeat.decoder`."""
