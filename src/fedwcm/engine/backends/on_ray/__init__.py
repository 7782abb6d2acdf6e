"""Clients on the workers of a Ray cluster, whose uploads stay where they were made."""
