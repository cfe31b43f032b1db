"""What the experiments of one paper have in common: its tasks, its settings, its clusters."""
