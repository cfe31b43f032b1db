"""What a worker's own copy is made of, and the ways in which copies mix."""
