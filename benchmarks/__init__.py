"""The benchmark: this package and its peers at the same jobs, round by round, one at a time."""
