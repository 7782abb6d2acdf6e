"""Secure aggregation on both sides."""
