"""What a pipeline is made of beside its loop."""
