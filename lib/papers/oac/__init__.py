"""OAC's experiments."""
