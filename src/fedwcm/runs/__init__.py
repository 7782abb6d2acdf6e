"""A run: its folder and records, its loop, its checkpoints, progress and trackers."""
