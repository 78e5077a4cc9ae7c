"""What is right: the executable spec of a paged KV cache, and the drivers that hold implementations to it."""
