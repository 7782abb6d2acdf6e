"""A federation of real clients: edit `task.py`, and the settings in `pyproject.toml`."""
