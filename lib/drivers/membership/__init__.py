"""Who takes part in a run, and who mixes with whom."""
