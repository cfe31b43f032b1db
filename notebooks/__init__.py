"""The experiments: pages, a folder a paper, and next to them the modules that they need; here what several papers share."""
