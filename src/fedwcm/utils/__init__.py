"""What knows nothing of federated learning: processes, files, durations, JSON, optional libraries."""
