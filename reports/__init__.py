"""Executed notebooks as web pages: one file each, which loads nothing, and an index of experiments and verdicts."""
