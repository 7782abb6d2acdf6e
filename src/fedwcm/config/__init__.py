"""Configuration: options, TOML files and flags, and the objects built from them."""
