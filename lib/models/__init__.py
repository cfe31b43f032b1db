"""Models: modules with `forward(batch, rows) -> scores` and `loss(batch, scores)`, and the flat vector that holds one."""
