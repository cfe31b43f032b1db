"""Training runs: one, many, and several protocols one after another."""
