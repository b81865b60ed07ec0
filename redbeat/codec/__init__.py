"""Converts Python objects to JSON and back. Users import :mod:`redbeat.decoder` instead."""
