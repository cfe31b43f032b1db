"""A modelled cluster in virtual time."""
