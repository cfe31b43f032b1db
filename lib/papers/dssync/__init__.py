"""DS-Sync's experiments."""
