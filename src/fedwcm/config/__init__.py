"""From words to objects: options, TOML files, flags and what they build."""
