"""Rows in a device's memory."""
