"""A whole mesh in one process: the same parts as in actors, without Ray and without a port."""
