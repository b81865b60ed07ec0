"""The parts of an entry: stored texts, policy, history, decision, status and pauses."""
