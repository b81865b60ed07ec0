"""A deterministic simulator that runs the real beats and the real scripts in virtual time."""
