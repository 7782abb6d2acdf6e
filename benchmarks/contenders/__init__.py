"""One small script for each contender: prepare everything, then run a round whenever the driver says so."""
