"""The experiments: pages, a folder a paper, and beside them the modules that they need; here what several papers share."""
