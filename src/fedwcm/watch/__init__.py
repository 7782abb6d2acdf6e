"""Runs in progress, as a terminal shows them: nothing here needs torch, and nothing writes to a run's folder."""
