"""Runs in progress in a terminal. Nothing here needs torch, and nothing writes to a run's folder."""
