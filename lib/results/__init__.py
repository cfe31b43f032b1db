"""What a run leaves: its tables and figures, how it is saved and found again."""
