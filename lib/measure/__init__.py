"""Measurements of this machine and of the kit on it."""
