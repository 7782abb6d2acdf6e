"""From what is asked for to finished runs: requests, plans, starting and resuming, processes and clusters."""
