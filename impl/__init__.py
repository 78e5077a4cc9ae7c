"""The fast implementation of a paged KV-cache manager. It never imports the spec."""
