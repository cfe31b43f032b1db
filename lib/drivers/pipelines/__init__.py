"""The host store of a pipeline, and its log of accesses."""
