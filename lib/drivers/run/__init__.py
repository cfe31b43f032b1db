"""The run, its plan, its records and its cuts: what all three loops share."""
