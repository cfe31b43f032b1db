"""Persia's experiments."""
