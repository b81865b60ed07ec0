"""The conversion of Python objects to JSON and back. Programs use :mod:`redbeat.decoder`."""
