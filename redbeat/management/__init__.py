"""Work on a whole schedule: find, preview, apply, examine, move."""
