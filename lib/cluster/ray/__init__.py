"""Processes on one machine or many, by Ray."""
