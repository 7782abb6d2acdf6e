"""One small script for each contender: prepare everything, then play a round whenever the driver says so."""
