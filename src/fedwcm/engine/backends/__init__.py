"""Where clients are trained: in this process or in workers."""
