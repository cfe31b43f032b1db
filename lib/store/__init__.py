"""Where parameters live: dense ones as a flat vector, sparse ones as rows of a hashed table."""
