"""A table in memory that outlives its process."""
