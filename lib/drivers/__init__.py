"""The three loops that execute rules: server, replica, pipeline."""
