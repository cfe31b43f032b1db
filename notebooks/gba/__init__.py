"""Su et al., GBA, NeurIPS 2022: its tasks, their settings, and its studies."""
