"""The benches of page 93: ratios against a peer or a limit, measured in one run."""
