"""What is trained on: batches, and generators of synthetic data with a planted truth."""
