"""A deterministic simulator: the real beats and the real scripts under a virtual clock."""
