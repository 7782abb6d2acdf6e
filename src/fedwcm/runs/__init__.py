"""A run: its folder on disk, its records, its loop from the first round to the last."""
