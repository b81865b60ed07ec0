"""The beat: its ticks renew the lock, claim due entries, publish and record their runs."""
