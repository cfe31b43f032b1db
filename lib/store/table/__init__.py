"""Rows found by any 64-bit id: records, their hash index, and what happens to whole batches of ids."""
