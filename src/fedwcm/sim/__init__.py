"""The simulator: every client on one machine."""
