"""A client's side: its app, its mods, its state and what it reveals."""
