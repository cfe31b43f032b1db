"""Checks of other people's code: reference traces of every protocol, and a test that an implementation without delay is Sync."""
