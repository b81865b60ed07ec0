"""The parts of an entry: definition, policy, history, decision, status and pauses."""
