"""A run in words: options, TOML files, flags and recipes. Nothing here imports torch."""
