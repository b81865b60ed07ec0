"""One beat at work: keep the lock, claim, dispatch, complete, wait."""
