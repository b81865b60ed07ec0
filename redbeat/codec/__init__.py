"""How Python objects are written as JSON and read back; :mod:`redbeat.decoder` is its front."""
