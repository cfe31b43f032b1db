"""Parameter servers, the workers' clients of them, and embedding workers between the two."""
