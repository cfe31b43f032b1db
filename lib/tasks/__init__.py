"""Tasks: models, their data, real or synthetic, and the workloads that join them."""
