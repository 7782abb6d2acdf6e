"""Backends, which train clients in this process or in worker processes."""
