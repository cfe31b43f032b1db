"""Persia's experiments: tasks, settings and clusters, each beside what the paper says of it."""
