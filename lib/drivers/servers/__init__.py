"""Servers of parameters, the workers' view of them, and embedding workers between the two."""
