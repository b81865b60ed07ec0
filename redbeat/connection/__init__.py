"""Clients of Redis: settings and URLs to a client of the right topology that tries again."""
